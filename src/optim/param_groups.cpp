#include "mezzo/optim/param_groups.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace mezzo {

bool usually_decays(const NamedParameter& parameter) {
  const std::string own_name = parameter.name.substr(parameter.name.rfind('.') + 1);  // npos + 1 is 0
  return own_name.find("bias") == std::string::npos && !is_norm_parameter(parameter);
}

std::vector<ParamGroup> make_param_groups(const std::vector<NamedParameter>& parameters,
                                          const ParamGroupsOptions& options) {
  TORCH_CHECK_VALUE(options.layer_lr_decay > 0 && options.layer_lr_decay <= 1,
                    "make_param_groups: layer_lr_decay must be above 0 and at most 1, got ", options.layer_lr_decay);
  TORCH_CHECK_VALUE(options.layer_lr_decay == 1 || options.layer,
                    "make_param_groups: layer_lr_decay needs to know the layer of a parameter; set `layer`");
  const bool by_layer = options.layer_lr_decay < 1;
  std::map<std::pair<int64_t, bool>, ParamGroup> groups;
  int64_t top = 0;
  for (const NamedParameter& parameter : parameters) {
    const int64_t layer = by_layer ? options.layer(parameter) : 0;
    top = std::max(top, layer);
    groups[{layer, !options.decays(parameter)}].params.push_back(parameter);
  }
  std::vector<ParamGroup> result;
  for (auto& [key, group] : groups) {
    const auto [layer, is_plain] = key;
    group.weight_decay = is_plain ? 0 : options.weight_decay;
    group.lr_scale = std::pow(options.layer_lr_decay, static_cast<double>(top - layer));
    result.push_back(std::move(group));
  }
  return result;
}

std::vector<ParamGroup> no_decay_groups(const torch::nn::Module& module, std::optional<double> weight_decay) {
  ParamGroup decayed{{}, weight_decay}, plain{{}, 0.0};
  for (const NamedParameter& parameter : named_parameters(module)) {
    if (parameter.tensor.requires_grad()) {
      (usually_decays(parameter) ? decayed : plain).params.push_back(parameter);
    }
  }
  std::vector<ParamGroup> groups{std::move(decayed), std::move(plain)};
  std::erase_if(groups, [](const ParamGroup& group) { return group.params.empty(); });
  return groups;
}

}  // namespace mezzo
