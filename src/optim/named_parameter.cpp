#include "mezzo/optim/named_parameter.h"

#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <set>
#include <string_view>
#include <typeinfo>

namespace mezzo {
namespace {

using torch::nn::Module;

template <class... Modules>
bool is_any_of(const Module& module) {
  return ((dynamic_cast<const Modules*>(&module) != nullptr) || ...);
}

bool is_norm_of_libtorch(const Module& module) {
  using namespace torch::nn;
  return is_any_of<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                   InstanceNorm3dImpl, LayerNormImpl, GroupNormImpl>(module);
}

/// "models::RMSNormImpl": yes; "models::PostNormLayer": no.
bool ends_in_norm(std::string_view type) {
  type = type.substr(0, type.find('<'));
  if (type.ends_with("Impl")) {
    type.remove_suffix(4);
  }
  if (type.size() > 2 && type.back() == 'd' && std::isdigit(static_cast<unsigned char>(type[type.size() - 2])) != 0) {
    type.remove_suffix(2);
  }
  return type.ends_with("Norm");
}

/// Whether a module has running statistics: a floating buffer of one number for each of `parameter`'s.
bool has_statistics(const Module& module, const at::Tensor& parameter) {
  const auto buffers = module.buffers(/*recurse=*/false);
  return std::any_of(buffers.begin(), buffers.end(), [&](const at::Tensor& buffer) {
    return buffer.defined() && buffer.is_floating_point() && buffer.sizes() == parameter.sizes();
  });
}

/// No matrix, as SpectralNorm and WeightNorm have one.
bool has_only_vectors(const Module& module) {
  const auto own = module.parameters(/*recurse=*/false);
  return std::all_of(own.begin(), own.end(), [](const at::Tensor& parameter) { return parameter.dim() <= 1; });
}

NormRole norm_role(const Module& module, const at::Tensor& parameter) {
  const std::string type = c10::demangle(typeid(module).name());
  const bool is_norm = is_norm_of_libtorch(module) || (ends_in_norm(type) && has_only_vectors(module));
  if (!is_norm) {
    return type.starts_with("torch::nn::") ? NormRole::kNone : NormRole::kUnknown;
  }
  return has_statistics(module, parameter) ? NormRole::kNormWithStatistics : NormRole::kNorm;
}

}  // namespace

std::vector<NamedParameter> named_parameters(const Module& module) {
  std::vector<NamedParameter> parameters;
  std::set<const void*> seen;
  module.apply([&](const std::string& path, const Module& part) {
    for (const auto& item : part.named_parameters(/*recurse=*/false)) {
      if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
        const std::string name = path.empty() ? item.key() : path + "." + item.key();
        parameters.push_back({name, item.value(), /*half_copy=*/{}, norm_role(part, item.value())});
      }
    }
  });
  return parameters;
}

bool is_norm_parameter(const NamedParameter& parameter) {
  if (parameter.norm != NormRole::kUnknown) {
    return parameter.norm != NormRole::kNone;
  }
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
