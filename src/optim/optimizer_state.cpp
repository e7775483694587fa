#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <utility>

#include "kernels/dtypes.h"
#include "mezzo/optim/optimizer.h"

namespace mezzo {
namespace {

constexpr std::string_view kStep = "step";

at::IntArrayRef sizes_of(std::string_view slot, const at::Tensor& param) {
  return slot == kStep ? at::IntArrayRef() : param.sizes();
}

at::TensorOptions options_of(std::string_view slot, const at::Tensor& param) {
  const bool is_float = slot == kStep || is_half(param.scalar_type());
  return at::TensorOptions(param.device()).dtype(is_float ? at::kFloat : param.scalar_type());
}

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
    const auto options = options_of(name, param);
    state.push_back(name == kStep ? at::zeros({}, options)
                                  : at::zeros_like(param, options, at::MemoryFormat::Preserve));
  }
  return state;
}

/// Whether `state` is as `initial_state` would make it now: a parameter can get other memory.
bool Optimizer::fits(const std::vector<at::Tensor>& state, const at::Tensor& param) const {
  const auto names = all_slot_names();
  for (size_t slot = 0; slot < state.size(); ++slot) {
    const auto options = options_of(names[slot], param);
    if (state[slot].sizes() != sizes_of(names[slot], param) || state[slot].device() != options.device() ||
        state[slot].dtype() != options.dtype()) {
      return false;
    }
  }
  return state.size() == names.size();
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
        const auto expected = sizes_of(names[slot], parameter.tensor);
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

void Optimizer::load_state_dict(const std::map<std::string, at::Tensor>& state_dict) {
  check_state_dict(state_dict);
  const at::NoGradGuard no_grad;
  const auto names = all_slot_names();
  std::map<const void*, std::string> own;
  for (const auto& [name, tensor] : this->state_dict()) {
    own[tensor.storage().data()] = name;
  }
  auto entries = state_dict;
  for (auto& [name, entry] : entries) {
    const auto found = own.find(entry.has_storage() ? entry.storage().data() : nullptr);
    if (found != own.end() && found->second != name) {
      entry = entry.clone();  // this optimizer's own, under another name: read before it is written
    }
  }
  for (const ParamGroup& group : groups_) {
    for (const NamedParameter& parameter : group.params) {
      const auto entry_of = [&](size_t slot) { return entries.find(std::string(names[slot]) + "/" + parameter.name); };
      const bool is_loaded = !names.empty() && entry_of(0) != entries.end();
      if (!is_loaded && !state_.contains(parameter.name)) {
        continue;
      }
      auto& state = state_[parameter.name];
      if (!fits(state, parameter.tensor)) {
        state = initial_state(parameter.tensor);
      }
      for (size_t slot = 0; slot < names.size(); ++slot) {  // in place, since a recorded step may use the memory
        is_loaded ? state[slot].copy_(entry_of(slot)->second) : state[slot].zero_();
      }
    }
  }
}

}  // namespace mezzo
