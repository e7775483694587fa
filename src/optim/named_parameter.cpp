#include "mezzo/optim/named_parameter.h"

#include <torch/nn/module.h>

#include <cctype>
#include <cstddef>
#include <set>

namespace mezzo {

std::vector<NamedParameter> named_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      parameters.push_back({item.key(), item.value()});
    }
  }
  return parameters;
}

bool is_norm_parameter(const NamedParameter& parameter) {
  const std::string& name = parameter.name;
  const size_t end = name.rfind('.');
  if (parameter.tensor.dim() != 1 || end == std::string::npos) {
    return false;
  }
  const size_t dot = name.rfind('.', end - 1);  // npos + 1 is 0
  std::string module = name.substr(dot + 1, end - dot - 1);
  for (char& c : module) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const std::string letters = module.substr(0, 2);
  const bool is_short = (letters == "ln" || letters == "bn" || letters == "gn") &&
                        (module.size() == 2 || module[2] == '_' || std::isdigit(static_cast<unsigned char>(module[2])));
  return module.find("norm") != std::string::npos || is_short;
}

}  // namespace mezzo
