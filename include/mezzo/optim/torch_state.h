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

/// A hyperparameter of a torch.optim optimizer: `nesterov`, `ns_steps`, `eps`, `betas`, `ns_coefficients`,
/// `adjust_lr_fn`.
using TorchOption =
    std::variant<bool, int64_t, double, std::tuple<double, double>, std::tuple<double, double, double>, std::string>;
using TorchOptions = std::map<std::string, TorchOption>;

namespace detail {
using NamedOptions = std::vector<std::pair<std::string_view, TorchOption>>;
}  // namespace detail

/// What `state_dict()` of a torch.optim optimizer holds in Python, in its layout: parameters are
/// numbered from 0 in the order of the groups.
struct TorchOptimizerState {
  struct Group {
    TorchOptions options;  ///< lr, weight_decay and the optimizer's own; entries that are None are left out
    std::vector<int64_t> params;
  };
  std::map<int64_t, std::map<std::string, at::Tensor>> state;  ///< by parameter, then "step", "exp_avg", …
  std::vector<Group> param_groups;
};

}  // namespace mezzo
