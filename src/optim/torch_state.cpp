#include "mezzo/optim/torch_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/serialize/archive.h>

#include <algorithm>

#include "mezzo/optim/optimizer.h"

namespace mezzo {
namespace {

constexpr const char *kClass = "mezzo_class", *kSteps = "mezzo_steps";
constexpr int64_t kNotCounted = -1;

}  // namespace

/// As `read_options`, and PyTorch's options that hold for all groups.
TorchOptions Optimizer::torch_options(const torch::optim::OptimizerOptions& options) const {
  TorchOptions result;
  for (const auto& [name, value] : read_options(options)) {
    result.emplace(name, value);
  }
  if (options_.maximize || !result.contains("ns_steps")) {  // PyTorch's Muon lacks it
    result["maximize"] = options_.maximize;
  }
  const bool is_decoupled = dynamic_cast<const torch::optim::AdamWOptions*>(&options) != nullptr;
  if (is_decoupled || dynamic_cast<const torch::optim::AdamOptions*>(&options) != nullptr) {
    result["decoupled_weight_decay"] = is_decoupled;
  }
  return result;
}

TorchOptimizerState Optimizer::torch_state_dict() const {
  write_device_values();
  TorchOptimizerState result;
  int64_t number = 0;
  for (const auto& group : param_groups_) {
    auto& saved = result.param_groups.emplace_back();
    saved.options = torch_options(group.options());
    for (size_t i = 0; i < group.params().size(); ++i) {
      saved.params.push_back(number++);
    }
  }
  visit_state([&](size_t index, std::string_view slot, const at::Tensor& tensor) {
    result.state[static_cast<int64_t>(index)][std::string(slot)] = tensor;
  });
  return result;
}

void Optimizer::load_torch_state_dict(const TorchOptimizerState& loaded) {
  TORCH_CHECK_VALUE(loaded.param_groups.size() == param_groups_.size(), "Optimizer: the state to load has ",
                    loaded.param_groups.size(), " parameter groups, this optimizer has ", param_groups_.size());
  std::map<std::string, at::Tensor> entries;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> all_options;
  const auto parameter_keys = state_keys();
  std::map<int64_t, size_t> place;  // of a loaded parameter
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& saved = loaded.param_groups[g];
    const std::string where = c10::str("Optimizer: group ", g, " of the state to load: ");
    TORCH_CHECK_VALUE(saved.params.size() == param_groups_[g].params().size(), where, "there are ", saved.params.size(),
                      " parameters, expected ", param_groups_[g].params().size());
    auto& options = *all_options.emplace_back(param_groups_[g].options().clone());
    for (const auto& [name, own] : torch_options(options)) {
      const auto found = saved.options.find(name);
      const bool is_there = found != saved.options.end();
      TORCH_CHECK_VALUE(is_there || (name != "lr" && name != "weight_decay"), where, "there is no number ", name);
      if (!is_there) {
        continue;
      }
      TORCH_CHECK_VALUE(found->second.index() == own.index(), where, name, " has another type than this optimizer's");
      if (name == "maximize" || name == "decoupled_weight_decay") {
        TORCH_CHECK_VALUE(found->second == own, where, "this optimizer has another ", name,
                          ", which cannot be changed");
      } else {
        write_option(options, name, found->second);
      }
    }
    check_options(read_options(options), where);
    for (const int64_t number : saved.params) {
      TORCH_CHECK_VALUE(place.emplace(number, place.size()).second, where, "parameter ", number, " is there twice");
    }
  }
  for (const auto& [number, slots] : loaded.state) {
    TORCH_CHECK_VALUE(place.contains(number), "Optimizer: the state to load is of parameter ", number,
                      ", which is in none of its groups");
    for (const auto& [slot, tensor] : slots) {
      entries[slot + "/" + parameter_keys[place.at(number)]] = tensor;
    }
  }
  if (step_count(*make_state()) == nullptr) {  // PyTorch's state has no count: it is past the first step
    for (size_t g = 0; g < param_groups_.size(); ++g) {
      const auto names = all_slot_names(*all_options[g]);
      for (const int64_t number : loaded.param_groups[g].params) {
        if (loaded.state.contains(number) && std::ranges::count(names, "step") > 0) {
          entries.try_emplace("step/" + parameter_keys[place.at(number)], at::ones({}));
        }
      }
    }
  }
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> previous;
  const auto exchange = [&](auto& given) {
    for (size_t g = 0; g < param_groups_.size(); ++g) {
      auto& options = param_groups_[g].options();
      previous.push_back(options.clone());
      for (const auto& [name, value] : read_options(*given[g])) {
        write_option(options, name, value);
      }
    }
  };
  exchange(all_options);
  try {
    load_state_dict(entries);
  } catch (...) {
    const auto saved = std::move(previous);
    exchange(saved);
    throw;
  }
  if (lr_tensor_.defined() && std::ranges::any_of(lr_scales_, [](double scale) { return scale != 0; })) {
    const at::NoGradGuard no_grad;
    lr_tensor_.fill_(base_lr());
  }
}

void Optimizer::write_device_values() const {
  for (const auto& [parameter, step] : steps_) {
    if (int64_t* const count = count_of(parameter); count != nullptr && !step.is_cpu()) {
      *count = step.item<int64_t>();
    }
  }
  if (lr_tensor_.defined()) {
    const double lr = this->lr();
    for (size_t g = 0; g < param_groups_.size(); ++g) {
      // The archive's template reads them there; a step does not, as long as there is a tensor.
      const_cast<torch::optim::OptimizerOptions&>(param_groups_[g].options()).set_lr(lr * scale_of(g));
    }
  }
}

/// Leaves out a buffer that no step has filled: LibTorch would dampen the first gradient into it.
void Optimizer::copy_archived(torch::optim::Optimizer& saved) const {
  write_device_values();
  catch_up();
  saved.param_groups() = std::vector(param_groups_);
  const bool counts = step_count(*make_state()) != nullptr;
  for (const auto& [parameter, state] : state_) {
    const auto step = steps_.find(parameter);
    if (counts || step == steps_.end() || step->second.item<float>() != 0) {
      saved.state()[parameter] = state->clone();
    }
  }
}

/// What LibTorch's archives lack: the class, and step counts that LibTorch's states have no place for.
void Optimizer::save_own(torch::serialize::OutputArchive& archive) const {
  archive.write(kClass, c10::IValue(detail::name_of(*this)));
  if (!steps_.empty() && step_count(*make_state()) == nullptr) {
    std::vector<int64_t> steps(detail::num_parameters(*this), kNotCounted);
    visit_state([&](size_t index, std::string_view slot, const at::Tensor& tensor) {
      steps[index] = slot == "step" ? tensor.item<int64_t>() : steps[index];
    });
    archive.write(kSteps, c10::IValue(steps));
  }
}

void Optimizer::load_from(const torch::optim::Optimizer& loaded, torch::serialize::InputArchive& archive) {
  c10::IValue of_class, steps;
  TORCH_CHECK_VALUE(
      !archive.try_read(kClass, of_class) || (of_class.isString() && of_class.toStringRef() == detail::name_of(*this)),
      detail::name_of(*this), ": the archive to load is of ",
      of_class.isString() ? of_class.toStringRef() : "something else");
  const bool has_steps = archive.try_read(kSteps, steps) && steps.isIntList() &&
                         steps.toIntVector().size() == detail::num_parameters(*this);
  TorchOptimizerState state;
  int64_t number = 0;
  for (size_t g = 0; g < loaded.param_groups().size(); ++g) {
    const auto& group = loaded.param_groups()[g];
    auto& saved = state.param_groups.emplace_back();
    for (const auto& [name, value] : read_options(group.options())) {
      saved.options.emplace(name, value);
    }
    const auto names = all_slot_names(group.options());
    for (const at::Tensor& parameter : group.params()) {
      const auto found = loaded.state().find(parameter.unsafeGetTensorImpl());
      const bool has_state = found != loaded.state().end();
      for (const std::string_view name : names) {
        if (name == "step") {
          const int64_t* count = has_state ? step_count(*found->second) : nullptr;
          const int64_t done = count != nullptr ? *count : has_steps ? steps.toIntVector()[number] : kNotCounted;
          if (done > 0 || (done == 0 && has_state)) {
            state.state[number]["step"] = at::full({}, static_cast<double>(done), at::kFloat);
          }
        } else if (has_state) {
          if (const at::Tensor& tensor = slot(*found->second, name); tensor.defined()) {
            state.state[number][std::string(name)] = tensor.detach();
          }
        }
      }
      saved.params.push_back(number++);
    }
  }
  load_torch_state_dict(state);
}

}  // namespace mezzo
