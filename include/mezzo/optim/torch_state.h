#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace mezzo {

/// A hyperparameter of a torch.optim optimizer: `nesterov`, `ns_steps`, `eps`, `betas`,
/// `ns_coefficients` or `adjust_lr_fn`, by type.
using TorchOption =
    std::variant<bool, int64_t, double, std::tuple<double, double>, std::tuple<double, double, double>, std::string>;
/// Hyperparameters by PyTorch's names.
using TorchOptions = std::map<std::string, TorchOption>;

namespace detail {
using NamedOptions = std::vector<std::pair<std::string_view, TorchOption>>;
}  // namespace detail

/// The `state_dict()` of a torch.optim optimizer in Python, in its layout: parameters are numbered
/// from 0 in the order of the groups.
struct TorchOptimizerState {
  /// One parameter group.
  struct Group {
    TorchOptions options;         ///< lr, weight_decay and others; entries that are None are omitted
    std::vector<int64_t> params;  ///< numbers of the group's parameters
  };
  std::map<int64_t, std::map<std::string, at::Tensor>> state;  ///< by parameter, then "step", "exp_avg", …
  std::vector<Group> param_groups;                             ///< in the optimizer's order
};

}  // namespace mezzo
