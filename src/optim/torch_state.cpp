#include "mezzo/optim/torch_state.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "mezzo/optim/optimizer.h"
#include "optim/check_number.h"

namespace mezzo {
namespace {

/// That of a group, which is never negative.
double number_of(const TorchOptimizerState& state, size_t group, const std::string& key) {
  const TorchOptions& options = state.param_groups[group].options;
  const auto found = options.find(key);
  TORCH_CHECK_VALUE(found != options.end() && std::holds_alternative<double>(found->second), "Optimizer: group ", group,
                    " of the state to load has no number ", key);
  const double number = std::get<double>(found->second);
  check_not_negative(c10::str("Optimizer: ", key, " of group ", group, " of the state to load"), number);
  return number;
}

/// What of a group's options `own` names; those it lacks are as in `own`. Flags and the
/// dampening cannot be taken over.
TorchOptions known_options(const TorchOptions& own, const TorchOptions& loaded) {
  TorchOptions result = own;
  for (auto& [key, value] : result) {
    const auto found = loaded.find(key);
    if (found == loaded.end()) {
      continue;
    }
    TORCH_CHECK_VALUE(found->second.index() == value.index(), "Optimizer: option ", key,
                      " of the state to load has another type than this optimizer's");
    TORCH_CHECK_VALUE((!std::holds_alternative<bool>(value) && key != "dampening") || found->second == value,
                      "Optimizer: the state to load is of an optimizer with another ", key,
                      ", which cannot be taken over; make this optimizer alike");
    value = found->second;
  }
  return result;
}

}  // namespace

TorchOptimizerState Optimizer::torch_state_dict() const {
  TorchOptimizerState result;
  const auto names = all_slot_names();
  const double base_lr = lr();
  int64_t number = 0;
  for (const ParamGroup& group : groups_) {
    TorchOptimizerState::Group& saved = result.param_groups.emplace_back();
    saved.options = hyperparameters();
    saved.options["lr"] = base_lr * group.lr_scale;
    saved.options["weight_decay"] = *group.weight_decay;
    for (const NamedParameter& parameter : group.params) {
      saved.params.push_back(number);
      const auto state = state_.find(parameter.name);
      for (size_t slot = 0; state != state_.end() && slot < names.size(); ++slot) {
        result.state[number][std::string(names[slot])] = state->second[slot];
      }
      ++number;
    }
  }
  return result;
}

void Optimizer::load_torch_state_dict(const TorchOptimizerState& loaded) {
  TORCH_CHECK_VALUE(loaded.param_groups.size() == groups_.size(), "Optimizer: the state to load has ",
                    loaded.param_groups.size(), " parameter groups, this optimizer has ", groups_.size());
  const TorchOptions own = hyperparameters();
  const TorchOptions options = known_options(own, loaded.param_groups.front().options);
  const auto learns = std::ranges::find_if(groups_, [](const ParamGroup& group) { return group.lr_scale > 0; });
  const auto first = static_cast<size_t>(learns - groups_.begin());
  const double lr = learns == groups_.end() ? this->lr() : number_of(loaded, first, "lr") / learns->lr_scale;
  std::map<std::string, at::Tensor> entries;
  size_t used = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& saved = loaded.param_groups[g];
    TORCH_CHECK_VALUE(saved.params.size() == groups_[g].params.size(), "Optimizer: group ", g,
                      " of the state to load has ", saved.params.size(), " parameters, expected ",
                      groups_[g].params.size());
    TORCH_CHECK_VALUE(g == 0 || known_options(own, saved.options) == options, "Optimizer: group ", g,
                      " of the state to load has hyperparameters of its own, of which mezzo knows lr and weight_decay");
    const double group_lr = lr * groups_[g].lr_scale;
    const double saved_lr = number_of(loaded, g, "lr");
    TORCH_CHECK_VALUE(std::abs(saved_lr - group_lr) <= 1e-9 * group_lr, "Optimizer: group ", g,
                      " of the state to load has lr ", saved_lr, ", expected ", group_lr,
                      "; give the groups of this optimizer an lr_scale in the same ratio");
    number_of(loaded, g, "weight_decay");
    for (size_t i = 0; i < saved.params.size(); ++i) {
      const auto state = loaded.state.find(saved.params[i]);
      if (state != loaded.state.end()) {
        ++used;
        for (const auto& [slot, tensor] : state->second) {
          entries[slot + "/" + groups_[g].params[i].name] = tensor;
        }
      }
    }
  }
  TORCH_CHECK_VALUE(used == loaded.state.size(), "Optimizer: the state to load is of ", loaded.state.size(),
                    " parameters, of which ", used, " are in its groups");
  const auto previous = hyperparameters();
  set_hyperparameters(options);
  try {
    load_state_dict(entries);
  } catch (...) {
    set_hyperparameters(previous);
    throw;
  }
  set_lr(lr);
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].weight_decay = number_of(loaded, g, "weight_decay");
  }
}

}  // namespace mezzo
