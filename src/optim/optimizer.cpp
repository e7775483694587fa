#include "mezzo/optim/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "kernels/cpu/update_order.h"
#include "kernels/device_scalars.h"
#include "kernels/dtypes.h"
#include "kernels/grouped.h"
#include "kernels/parameter_update.h"
#include "memory/recording_scope.h"
#include "optim/check_number.h"
#include "optim/deferred_rows.h"

namespace mezzo {
namespace detail {

void check_option(std::string_view name, double value, std::string_view where) {
  const std::string what = name == "lr" ? "learning rate" : name == "eps" ? "epsilon value" : c10::str(name, " value");
  TORCH_CHECK_VALUE(std::isfinite(value) && (name == "dampening" || value >= 0), where, "Invalid ", what, ": ", value);
}

void check_option(std::string_view /*name*/, const std::tuple<double, double>& betas, std::string_view where) {
  const auto [beta1, beta2] = betas;
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1, where, "Invalid beta parameter at index 0: ", beta1);
  TORCH_CHECK_VALUE(beta2 >= 0 && beta2 < 1, where, "Invalid beta parameter at index 1: ", beta2);
}

}  // namespace detail

namespace {

/// Of a learning rate that is a tensor, if nothing has to be waited for.
void check_lr_value(const at::Tensor& lr) {
  if (lr.defined() && lr.is_cpu()) {
    check_not_negative("Optimizer: the learning rate in the tensor given to set_lr()", lr.item<double>());
  }
}

}  // namespace

ParamGroups::ParamGroups(std::vector<NamedParameter> parameters) { groups_.push_back({std::move(parameters)}); }

ParamGroups::ParamGroups(const torch::nn::Module& module) {
  auto parameters = named_parameters(module);
  std::erase_if(parameters, [](const NamedParameter& parameter) { return !parameter.tensor.requires_grad(); });
  groups_.push_back({std::move(parameters)});
}

Optimizer::Optimizer(std::unique_ptr<torch::optim::OptimizerOptions> defaults, const StepOptions& options)
    : torch::optim::Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), std::move(defaults)),
      options_(options),
      measurement_(options.max_grad_norm) {}

template <class Add>
void Optimizer::add_or_undo(const Add& add) {
  const auto groups = static_cast<std::ptrdiff_t>(param_groups_.size());
  const auto about = about_;
  const auto scales = lr_scales_;
  try {
    add();
    check_groups();
  } catch (...) {
    param_groups_.erase(param_groups_.begin() + groups, param_groups_.end());
    about_ = about;
    lr_scales_ = scales;
    throw;
  }
}

void Optimizer::add_groups(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  add_or_undo([&] {
    for (const auto& group : groups) {
      torch::optim::Optimizer::add_param_group(group);
    }
  });
}

void Optimizer::add_groups(ParamGroups groups) {
  add_or_undo([&] {
    for (const ParamGroup& group : groups.groups_) {
      append(group);
    }
  });
}

void Optimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) { add_groups(std::vector{group}); }

void Optimizer::add_param_group(ParamGroup group) {
  TORCH_CHECK_VALUE(!group.params.empty(), "Optimizer: add_param_group() got a group without parameters");
  add_groups(ParamGroups(std::vector{std::move(group)}));
}

void Optimizer::append(const ParamGroup& group) {
  check_not_negative(c10::str("Optimizer: lr_scale of group ", param_groups_.size()), group.lr_scale);
  auto options = defaults_->clone();
  options->set_lr(base_lr() * group.lr_scale);
  if (group.weight_decay) {
    write_option(*options, "weight_decay", *group.weight_decay);
  }
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : group.params) {
    TORCH_CHECK_VALUE(parameter.tensor.defined() && parameter.tensor.is_leaf() && parameter.tensor.requires_grad(),
                      "Optimizer: parameter ", parameter.name,
                      " cannot be trained: it must be a leaf tensor that requires a gradient");
    tensors.push_back(parameter.tensor);
    about_.try_emplace(parameter.tensor.unsafeGetTensorImpl(),
                       About{parameter.name, parameter.half_copy, parameter.norm});
  }
  lr_scales_.resize(param_groups_.size(), 1.0);
  lr_scales_.push_back(group.lr_scale);
  param_groups_.emplace_back(std::move(tensors), std::move(options));
}

void Optimizer::check_options(const NamedOptions& options, std::string_view where) const {
  double momentum = 0, dampening = 0;
  bool nesterov = false;
  for (const auto& [name, option] : options) {
    std::visit([&, &each = name](const auto& value) { detail::check_option(each, value, where); }, option);
    if (name == "momentum") {
      momentum = std::get<double>(option);
    } else if (name == "dampening") {
      dampening = std::get<double>(option);
    } else if (name == "nesterov") {
      nesterov = std::get<bool>(option);
    }
  }
  TORCH_CHECK_VALUE(!nesterov || (momentum > 0 && dampening == 0), where,
                    "Nesterov momentum requires a momentum and zero dampening");
}

/// Of all groups and parameters. Somebody may have added some through LibTorch's base class.
void Optimizer::check_groups() {
  std::set<const void*> tensors;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    check_options(read_options(param_groups_[g].options()), c10::str("Optimizer: group ", g, ": "));
    for (const at::Tensor& parameter : param_groups_[g].params()) {
      check_parameter(parameter);
      TORCH_CHECK_VALUE(tensors.insert(parameter.unsafeGetTensorImpl()).second,
                        "Optimizer: ", detail::labelled_parameter(*this, parameter), " is listed twice");
    }
  }
  TORCH_CHECK_VALUE(!tensors.empty(), "Optimizer: no parameters to train");
  num_checked_ = tensors.size();
}

void Optimizer::check_parameter(const at::Tensor& parameter) const {
  const auto label = [&] { return detail::labelled_parameter(*this, parameter); };
  TORCH_CHECK_VALUE(parameter.defined() && parameter.is_leaf(), "Optimizer: ", label(),
                    " cannot be trained: it must be a leaf tensor");
  const auto dtype = parameter.scalar_type();
  TORCH_CHECK_VALUE(!parameter.requires_grad() || has_kernel(dtype) || dtype == at::kDouble, "Optimizer: ", label(),
                    " is ", dtype,
                    "; this optimizer trains float32, float64, float16 and bfloat16. Train the parameter with an "
                    "optimizer of torch::optim");
  TORCH_CHECK_VALUE(!options_.stochastic_rounding_seed || dtype != at::kHalf, "Optimizer: ", label(),
                    " is float16, which is not rounded stochastically; use bfloat16, or float32 master weights");
  const auto half_copy = half_copy_of(parameter);
  TORCH_CHECK_VALUE(
      !half_copy.defined() || (dtype == at::kFloat && is_half(half_copy.scalar_type()) &&
                               half_copy.sizes() == parameter.sizes() && half_copy.device() == parameter.device()),
      "Optimizer: the half copy of ", label(),
      " must be a float16 or bfloat16 tensor of its shape and device, and the parameter float32");
}

std::vector<ParamGroup> Optimizer::named_param_groups() const {
  std::vector<ParamGroup> groups;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    ParamGroup& group = groups.emplace_back();
    group.lr_scale = scale_of(g);
    for (const auto& [name, option] : read_options(param_groups_[g].options())) {
      if (name == "weight_decay") {
        group.weight_decay = std::get<double>(option);
      }
    }
    for (const at::Tensor& parameter : param_groups_[g].params()) {
      const auto found = about_.find(parameter.unsafeGetTensorImpl());
      const About about = found == about_.end() ? About() : found->second;
      group.params.push_back({about.name, parameter, about.half_copy, about.norm});
    }
  }
  return groups;
}

at::Tensor Optimizer::half_copy_of(const at::Tensor& parameter) const {
  const auto found = about_.find(parameter.unsafeGetTensorImpl());
  return found == about_.end() ? at::Tensor() : found->second.half_copy;
}

std::string Optimizer::name_of(const at::Tensor& parameter) const {
  const auto found = about_.find(parameter.unsafeGetTensorImpl());
  return found == about_.end() ? std::string() : found->second.name;
}

/// By the groups' options.
double Optimizer::base_lr() const {
  const double base = defaults_->get_lr();
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    if (const double scale = scale_of(g); scale != 0) {
      const double lr = param_groups_[g].options().get_lr();
      return lr == base * scale ? base : lr / scale;
    }
  }
  return base;
}

double Optimizer::lr() const { return lr_tensor_.defined() ? lr_tensor_.item<double>() : base_lr(); }

void Optimizer::set_lr(double lr) {
  detail::check_option("lr", lr, "Optimizer: ");
  if (lr_tensor_.defined()) {
    const at::NoGradGuard no_grad;
    lr_tensor_.fill_(lr);
    return;
  }
  defaults_->set_lr(lr);
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    param_groups_[g].options().set_lr(lr * scale_of(g));
  }
}

void Optimizer::set_lr(at::Tensor lr) {
  if (lr.defined()) {
    check_lr_device(lr.device());
  }
  TORCH_CHECK_VALUE(lr.defined() && lr.dim() == 0 && lr.scalar_type() == at::kDouble && !lr.requires_grad(),
                    "Optimizer: a learning rate that is a tensor must be 0-dim, float64 and require no gradient, got ",
                    lr.defined() ? lr.toString() : "an undefined one",
                    lr.defined() ? c10::str(" of sizes ", lr.sizes()) : "");
  const bool is_at_hand = std::ranges::any_of(detail::all_parameters(*this),
                                              [&](const at::Tensor& each) { return each.device() == lr.device(); });
  TORCH_CHECK_VALUE(is_at_hand, "Optimizer: the learning rate is on ", lr.device(),
                    ", but no parameter is there; move it to ", param_groups_.front().params().front().device());
  check_lr_value(lr);
  lr_tensor_ = std::move(lr);
}

void Optimizer::zero_grad(bool set_to_none) {
  const auto zero = [&](const at::Tensor& owner) {
    if (!owner.defined() || !owner.grad().defined()) {
      return;
    }
    if (set_to_none) {  // LibTorch's detaches first, and a recorded step would then use memory that is given up
      owner.mutable_grad().reset();
    } else {
      owner.mutable_grad().detach_().zero_();
    }
  };
  for (const at::Tensor& parameter : detail::all_parameters(*this)) {
    if (auto* const rows = deferred_rows(parameter); rows != nullptr) {
      rows->zero_gradient();
    } else {
      zero(parameter);
      zero(half_copy_of(parameter));
    }
  }
}

void Optimizer::place_weights() {
  if (!kernels::cpu::uses_numa_nodes()) {
    return;
  }
  std::vector<at::Tensor> params, half_copies;
  for (const at::Tensor& parameter : detail::all_parameters(*this)) {
    if (deferred_rows(parameter) == nullptr) {  // a step updates few of its rows
      params.push_back(parameter);
      half_copies.push_back(half_copy_of(parameter));
    }
  }
  kernels::cpu::place_in_update_order(params, params);
  kernels::cpu::place_in_update_order(params, half_copies);
}

at::Tensor Optimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  apply(measurement_.before_step(*this));
  return loss;
}

std::optional<at::Tensor> Optimizer::check_gradients(const std::optional<at::Tensor>& scale) {
  return measurement_.check(*this, scale, takes_sparse_gradients());
}

at::Tensor Optimizer::step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) {
  apply(measurement_.before_scaled_step(*this, grad_scale, found_inf));
  return {};
}

/// Parameters of one device and one set of options, and what to do after their update.
struct Optimizer::Batch {
  at::Device device;
  NamedOptions settings;
  const torch::optim::OptimizerOptions* options;
  std::vector<ParameterUpdate> updates;
  std::vector<std::pair<int64_t*, at::Tensor>> counts;  // of steps, on the CPU
};

/// All parameters with gradients; makes the state of parameters that have none yet.
std::vector<Optimizer::Batch> Optimizer::collect_batches() {
  if (detail::num_parameters(*this) != num_checked_) {
    check_groups();
  }
  std::vector<Batch> batches;
  const auto owners = detail::gradient_owners(*this);
  uint32_t index = 0;
  for (size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& options = param_groups_[g].options();
    auto settings = read_options(options);
    try {
      check_options(settings, "");
    } catch (const c10::ValueError&) {  // again, with the group's number, which costs time at every step else
      check_options(settings, c10::str("Optimizer: group ", g, ": "));
    }
    const auto weight_decay = std::ranges::find(settings, "weight_decay", &NamedOptions::value_type::first)->second;
    const auto names = all_slot_names(options);
    std::erase_if(settings, [](const auto& each) { return each.first == "lr" || each.first == "weight_decay"; });
    const double lr = lr_tensor_.defined() ? scale_of(g) : options.get_lr();
    for (const at::Tensor& parameter : param_groups_[g].params()) {
      const auto number = index++;
      const at::Tensor& gradient = owners[number].tensor.grad();
      if (!gradient.defined()) {
        continue;
      }
      TORCH_CHECK_VALUE(gradient.layout() == at::kStrided || (gradient.is_sparse() && takes_sparse_gradients()),
                        detail::name_of(*this), " does not support ",
                        takes_sparse_gradients() ? c10::str(gradient.layout()) : std::string("sparse"),
                        " gradients, but ", detail::parameter_name(*this, number), " has one; ",
                        takes_sparse_gradients() ? "make it dense or sparse COO" : "train it with mezzo::SGD");
      auto* const key = parameter.unsafeGetTensorImpl();
      const auto state = state_tensors(parameter, names, /*replaces=*/false);
      ParameterUpdate update{.param = parameter,
                             .gradient = gradient,
                             .half_copy = half_copy_of(parameter),
                             .step = {},
                             .slots = {},
                             .lr = lr,
                             .weight_decay = std::get<double>(weight_decay),
                             .index = number,
                             .rounding_seed = options_.stochastic_rounding_seed,
                             .places_slots = new_states_.erase(key) > 0};
      int64_t* count = nullptr;
      if (state.step != nullptr) {
        update.step = *state.step;
        count = update.step.is_cpu() ? count_of(key) : nullptr;
        if (count != nullptr) {
          *update.step.data_ptr<float>() = static_cast<float>(*count);
        }
      }
      for (const at::Tensor* slot : state.slots) {
        update.slots.push_back(*slot);
      }
      auto batch = std::ranges::find_if(
          batches, [&](const Batch& each) { return each.device == parameter.device() && each.settings == settings; });
      if (batch == batches.end()) {
        batch = batches.insert(batch, Batch{parameter.device(), settings, &options, {}, {}});
      }
      batch->updates.push_back(std::move(update));
      if (count != nullptr) {
        batch->counts.emplace_back(count, batch->updates.back().step);
      }
    }
  }
  return batches;
}

/// Updates every parameter that has a gradient, unless `found_inf` says not to.
void Optimizer::apply(const detail::MeasuredGradients& measured) {
  const at::NoGradGuard no_grad;
  check_lr_value(lr_tensor_);
  auto batches = collect_batches();
  grad_norm_ = measured.statistics.norm;
  found_inf_ = measured.statistics.found_inf;
  for (Batch& batch : batches) {
    update(*batch.options, batch.updates,
           {copy_to(measured.inv_scale, batch.device), copy_to(measured.clip, batch.device),
            copy_to(found_inf_, batch.device), copy_to(lr_tensor_, batch.device)});
    for (const auto& [count, step] : batch.counts) {
      *count = static_cast<int64_t>(*step.data_ptr<float>());
    }
  }
}

}  // namespace mezzo
