#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// Whether weight decay is usual for a parameter: all except norms (`is_norm_parameter`) and
/// biases. A bias has "bias" in the last part of its name, such as an LSTM's `bias_ih_l0`.
bool usually_decays(const NamedParameter& parameter);

/// Options of make_param_groups.
struct ParamGroupsOptions {
  /// Weight decay of the parameters for which `decays` is true; the others get 0.
  double weight_decay = 0.01;
  /// Whether a parameter has weight decay.
  std::function<bool(const NamedParameter&)> decays = usually_decays;
  /// Factor of a layer's learning rate for each layer above it (ELECTRA's "layer-wise learning-rate
  /// decay", Clark et al. 2020). 1: all layers have the same learning rate.
  double layer_lr_decay = 1;
  /// The layer of a parameter, from 0 at the input up. Needed with `layer_lr_decay`.
  std::function<int64_t(const NamedParameter&)> layer = {};
};

/// Sorts parameters into groups by weight decay and layer. The topmost layer has `lr_scale` 1. Each
/// layer below multiplies it by `layer_lr_decay`.
/// @throws c10::ValueError  for a decay outside (0, 1], or one below 1 without `layer`.
std::vector<ParamGroup> make_param_groups(const std::vector<NamedParameter>& parameters,
                                          const ParamGroupsOptions& options);

/// The two usual groups of fine-tuning: parameters with weight decay, and biases and norms without.
/// From a module, takes the parameters that require a gradient: `mezzo::AdamW
/// optimizer(mezzo::no_decay_groups(*model), options)`.
/// @param weight_decay  nullopt: the optimizer's default
std::vector<ParamGroup> no_decay_groups(const torch::nn::Module& module,
                                        std::optional<double> weight_decay = std::nullopt);

}  // namespace mezzo
