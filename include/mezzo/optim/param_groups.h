#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// Whether weight decay is customary for a parameter: for all but norms (`is_norm_parameter`) and
/// biases, which have "bias" in their own name, such as an LSTM's `bias_ih_l0`.
bool usually_decays(const NamedParameter& parameter);

struct ParamGroupsOptions {
  /// Of the parameters that `decays` picks; the others get 0.
  double weight_decay = 0.01;
  std::function<bool(const NamedParameter&)> decays = usually_decays;
  /// What a layer's learning rate is multiplied by for each layer above it (ELECTRA's "layer-wise
  /// learning-rate decay", Clark et al. 2020). 1: all layers learn alike.
  double layer_lr_decay = 1;
  /// The layer of a parameter, from 0 at the input up. Needed with `layer_lr_decay`.
  std::function<int64_t(const NamedParameter&)> layer = {};
};

/// Sorts parameters into groups by weight decay and layer. The topmost layer has `lr_scale` 1; each
/// below it `layer_lr_decay` times that of the one above.
/// @throws c10::ValueError  for a decay outside (0, 1], or one below 1 without `layer`.
std::vector<ParamGroup> make_param_groups(const std::vector<NamedParameter>& parameters,
                                          const ParamGroupsOptions& options);

/// The two groups that fine-tuning usually has: parameters with weight decay, and biases and norms
/// without. Of a module, those that require a gradient: `mezzo::AdamW
/// optimizer(mezzo::no_decay_groups(*model), options)`.
/// @param weight_decay  nullopt: the optimizer's own.
std::vector<ParamGroup> no_decay_groups(const torch::nn::Module& module,
                                        std::optional<double> weight_decay = std::nullopt);

}  // namespace mezzo
