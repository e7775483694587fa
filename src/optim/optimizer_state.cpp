#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "kernels/cpu/update_order.h"
#include "kernels/dtypes.h"
#include "memory/recording_scope.h"
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

std::vector<std::string_view> Optimizer::all_slot_names(const torch::optim::OptimizerOptions& options) const {
  auto names = slot_names(options);
  const auto named = read_options(options);
  const auto dampening = std::ranges::find(named, "dampening", &NamedOptions::value_type::first);
  const bool dampens = !names.empty() && dampening != named.end() && std::get<double>(dampening->second) != 0;
  // Dampening starts at the second step.
  if (options_.stochastic_rounding_seed || dampens || step_count(*make_state()) != nullptr) {
    names.insert(names.begin(), kStep);
  }
  return names;
}

/// LibTorch's count of a parameter's steps; nullptr if there is none.
int64_t* Optimizer::count_of(const void* parameter) const {
  const auto state = state_.find(const_cast<void*>(parameter));
  return state == state_.end() ? nullptr : step_count(*state->second);
}

/// The state of a parameter, made if it has none. Follows a parameter to another dtype or device.
/// @param names  as all_slot_names() gives them for the parameter's group
/// @param replaces  whether tensors whose sizes no longer fit the parameter are made anew
Optimizer::StateTensors Optimizer::state_tensors(const at::Tensor& parameter,
                                                 const std::vector<std::string_view>& names,
                                                 bool replaces) {
  auto* const key = parameter.unsafeGetTensorImpl();
  StateTensors result;
  const auto places_new = [&] {
    if (kernels::cpu::uses_numa_nodes()) {
      new_states_.insert(key);
    }
  };
  const auto use = [&](at::Tensor& tensor, std::string_view name) {
    const auto options = options_of(name, parameter);
    if (!tensor.defined() || (replaces && tensor.sizes() != sizes_of(name, parameter))) {
      TORCH_CHECK(!RecordingScope::is_open(), "Optimizer: ", detail::labelled_parameter(*this, parameter),
                  " has its first gradient in a recorded step. Each replay would set its state to 0 again. Give it a "
                  "gradient in a warm-up call");
      tensor = name == kStep ? at::zeros({}, options) : at::zeros_like(parameter, options, at::MemoryFormat::Preserve);
      places_new();
    } else if (tensor.device() != options.device() || tensor.dtype() != options.dtype()) {
      TORCH_CHECK(!RecordingScope::is_open(), "Optimizer: in a recorded step, ",
                  detail::labelled_parameter(*this, parameter),
                  " has another dtype or device than its state. Call step() once before the recording");
      check_groups();  // the optimizer may not train the new dtype
      tensor = tensor.to(options);
      places_new();
      if (int64_t* const count = count_of(key); name == kStep && count != nullptr) {
        *count = tensor.item<int64_t>();
      }
    }
    return &tensor;
  };
  if (names.empty() || names.front() != kStep) {
    steps_.erase(key);  // nobody counts on, and dampening may come back
  }
  for (const std::string_view name : names) {
    if (name == kStep) {
      at::Tensor& step = steps_[key];
      // Dampening is new to a buffer that is not: past the first step.
      const bool is_past_first = !step.defined() && state_.find(key) != state_.end() && count_of(key) == nullptr;
      result.step = use(step, name);
      if (is_past_first) {
        step.fill_(1);
      }
      continue;
    }
    auto& state = state_[key];
    if (state == nullptr) {
      state = make_state();
      if (result.step != nullptr) {
        *result.step = at::zeros_like(*result.step);
      }
    }
    result.slots.push_back(use(slot(*state, name), name));
  }
  return result;
}

std::vector<std::string> Optimizer::state_keys() const {
  std::map<std::string, int> uses;
  std::vector<std::string> keys;
  for (const at::Tensor& parameter : detail::all_parameters(*this)) {
    keys.push_back(name_of(parameter));
    ++uses[keys.back()];
  }
  const auto is_taken = [&](const std::string& key) { return key.empty() || uses[key] > 1; };
  const auto is_number = [](const std::string& key) { return key.find_first_not_of("0123456789") == key.npos; };
  const bool has_numbers = std::ranges::any_of(keys, is_taken);  // a name must not be the number of another then
  for (size_t i = 0; i < keys.size(); ++i) {
    if (is_taken(keys[i]) || (has_numbers && is_number(keys[i]))) {
      keys[i] = std::to_string(i);
    }
  }
  return keys;
}

/// Of all parameters, by their numbers.
void Optimizer::visit_state(const StateVisitor& visit) const {
  catch_up();
  size_t index = 0;
  for (const auto& group : param_groups_) {
    const auto names = slot_names(group.options());
    for (const at::Tensor& parameter : group.params()) {
      auto* const key = parameter.unsafeGetTensorImpl();
      const auto state = state_.find(key);
      const auto step = steps_.find(key);
      if (step != steps_.end() && (state != state_.end() || names.empty())) {
        visit(index, kStep, step->second);
      }
      for (size_t i = 0; state != state_.end() && i < names.size(); ++i) {
        if (const at::Tensor& tensor = slot(*state->second, names[i]); tensor.defined()) {
          visit(index, names[i], tensor);
        }
      }
      ++index;
    }
  }
}

std::map<std::string, at::Tensor> Optimizer::state_dict() const {
  std::map<std::string, at::Tensor> entries;
  const auto names = state_keys();
  visit_state([&](size_t index, std::string_view slot, const at::Tensor& tensor) {
    entries[std::string(slot) + "/" + names[index]] = tensor;
  });
  return entries;
}

void Optimizer::check_state_dict(const std::map<std::string, at::Tensor>& entries) const {
  size_t used = 0, index = 0;
  const auto parameter_keys = state_keys();
  for (const auto& group : param_groups_) {
    const auto names = all_slot_names(group.options());
    for (const at::Tensor& parameter : group.params()) {
      const auto& parameter_key = parameter_keys[index++];
      size_t found = 0;
      for (size_t slot = 0; slot < names.size(); ++slot) {
        const std::string key = std::string(names[slot]) + "/" + parameter_key;
        const auto entry = entries.find(key);
        if (entry == entries.end()) {
          TORCH_CHECK_VALUE(found == 0, "Optimizer: the state to load has no entry ", key);
          continue;
        }
        const auto expected = sizes_of(names[slot], parameter);
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
  size_t index = 0;
  const auto parameter_keys = state_keys();
  for (const auto& group : param_groups_) {
    const auto names = all_slot_names(group.options());
    for (const at::Tensor& parameter : group.params()) {
      const auto& key = parameter_keys[index++];
      const auto entry_of = [&](size_t slot) { return entries.find(std::string(names[slot]) + "/" + key); };
      const bool is_loaded = !names.empty() && entry_of(0) != entries.end();
      auto* const impl = parameter.unsafeGetTensorImpl();
      if (!is_loaded && state_.find(impl) == state_.end() && !steps_.contains(impl)) {
        continue;
      }
      const auto state = state_tensors(parameter, names, /*replaces=*/true);
      auto tensors = state.slots;
      if (state.step != nullptr) {
        tensors.insert(tensors.begin(), state.step);
      }
      for (size_t slot = 0; slot < names.size(); ++slot) {  // in place, since a recorded step may use the memory
        is_loaded ? tensors[slot]->copy_(entry_of(slot)->second) : tensors[slot]->zero_();
      }
      if (int64_t* const count = count_of(impl); count != nullptr && state.step->is_cpu()) {
        *count = state.step->item<int64_t>();
      }
    }
  }
}

void Optimizer::drop_state(size_t index) {
  catch_up();
  if (const auto parameters = detail::all_parameters(*this); index < parameters.size()) {
    auto* const key = parameters[index].unsafeGetTensorImpl();
    state_.erase(key);
    steps_.erase(key);
  }
}

}  // namespace mezzo
