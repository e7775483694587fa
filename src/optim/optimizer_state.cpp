#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <utility>

#include "kernels/dtypes.h"
#include "mezzo/optim/optimizer.h"

namespace mezzo {
namespace {

constexpr std::string_view kStep = "step";

}  // namespace

std::vector<std::string_view> Optimizer::all_slot_names() const {
  auto names = slot_names();
  if (counts_steps() || options_.stochastic_rounding_seed) {
    names.insert(names.begin(), kStep);
  }
  return names;
}

std::vector<at::Tensor> Optimizer::initial_state(const at::Tensor& param) const {
  std::vector<at::Tensor> state;
  for (const std::string_view name : all_slot_names()) {
    const auto options = at::TensorOptions(param.device()).dtype(at::kFloat);
    const auto moment_dtype = is_half(param.scalar_type()) ? at::kFloat : param.scalar_type();
    state.push_back(name == kStep ? at::zeros({}, options) : at::zeros(param.sizes(), options.dtype(moment_dtype)));
  }
  return state;
}

std::map<std::string, at::Tensor> Optimizer::state_dict() const {
  std::map<std::string, at::Tensor> entries;
  const auto names = all_slot_names();
  for (const auto& [parameter, tensors] : state_) {
    for (size_t slot = 0; slot < tensors.size(); ++slot) {
      entries[std::string(names[slot]) + "/" + parameter] = tensors[slot];
    }
  }
  return entries;
}

void Optimizer::check_state_dict(const std::map<std::string, at::Tensor>& entries) const {
  const auto names = all_slot_names();
  size_t used = 0;
  for (const ParamGroup& group : groups_) {
    for (const NamedParameter& parameter : group.params) {
      size_t found = 0;
      for (size_t slot = 0; slot < names.size(); ++slot) {
        const std::string key = std::string(names[slot]) + "/" + parameter.name;
        const auto entry = entries.find(key);
        if (entry == entries.end()) {
          TORCH_CHECK_VALUE(found == 0, "Optimizer: the state to load has no entry ", key);
          continue;
        }
        const auto expected = names[slot] == kStep ? at::IntArrayRef() : parameter.tensor.sizes();
        TORCH_CHECK_VALUE(entry->second.sizes() == expected && found == slot, "Optimizer: state entry ", key, " is ",
                          entry->second.sizes(), ", expected ", expected, " and every slot of the parameter");
        ++found;
      }
      used += found;
    }
  }
  TORCH_CHECK_VALUE(used == entries.size(), "Optimizer: the state to load has ", entries.size() - used,
                    " entries that belong to no parameter of this optimizer");
}

void Optimizer::load_state_dict(const std::map<std::string, at::Tensor>& entries) {
  check_state_dict(entries);
  const auto names = all_slot_names();
  std::map<std::string, std::vector<at::Tensor>> loaded;
  for (const ParamGroup& group : groups_) {
    for (const NamedParameter& parameter : group.params) {
      if (names.empty() || !entries.contains(std::string(names.front()) + "/" + parameter.name)) {
        continue;
      }
      auto& state = loaded[parameter.name] = initial_state(parameter.tensor);
      for (size_t slot = 0; slot < names.size(); ++slot) {
        state[slot].copy_(entries.at(std::string(names[slot]) + "/" + parameter.name));
      }
    }
  }
  state_ = std::move(loaded);
}

}  // namespace mezzo
