#include "mezzo/optim/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "kernels/device_scalars.h"
#include "kernels/dtypes.h"
#include "kernels/grouped.h"
#include "kernels/parameter_update.h"
#include "memory/recording_scope.h"
#include "optim/check_number.h"
#include "scaling/gradient_pass.h"

namespace mezzo {
namespace {

/// The tensor whose gradient is the parameter's.
const at::Tensor& gradient_owner(const NamedParameter& parameter) {
  const auto& [name, tensor, shadow, norm] = parameter;
  const bool on_shadow = shadow.defined() && shadow.grad().defined();
  TORCH_CHECK_VALUE(!on_shadow || !tensor.grad().defined(), "Optimizer: parameter ", name,
                    " has a gradient of its own and one on its half copy; call accumulate_gradients() after every "
                    "backward, or after none");
  return on_shadow ? shadow : tensor;
}

/// The gradient to update a parameter from; undefined where there is none.
const at::Tensor& dense_gradient(const NamedParameter& parameter) {
  const at::Tensor& gradient = gradient_owner(parameter).grad();
  TORCH_CHECK_VALUE(!gradient.defined() || gradient.layout() == at::kStrided, "Optimizer: the gradient of parameter ",
                    parameter.name, " is sparse, which this optimizer does not take");
  return gradient;
}

void check_parameter(const NamedParameter& parameter, bool stochastic) {
  const auto& [name, tensor, shadow, norm] = parameter;
  TORCH_CHECK_VALUE(tensor.defined() && tensor.is_leaf() && tensor.requires_grad(), "Optimizer: parameter ", name,
                    " cannot be trained: it must be a leaf tensor that requires a gradient");
  TORCH_CHECK_VALUE(has_kernel(tensor.scalar_type()) || tensor.scalar_type() == at::kDouble, "Optimizer: parameter ",
                    name, " is ", tensor.scalar_type(),
                    "; this optimizer trains float32, float64, float16 and bfloat16. Train the parameter with an "
                    "optimizer of torch::optim");
  TORCH_CHECK_VALUE(!stochastic || tensor.scalar_type() != at::kHalf, "Optimizer: parameter ", name,
                    " is float16, which is not rounded stochastically; use bfloat16, or float32 master weights");
  TORCH_CHECK_VALUE(!shadow.defined() || (tensor.scalar_type() == at::kFloat && is_half(shadow.scalar_type()) &&
                                          shadow.sizes() == tensor.sizes() && shadow.device() == tensor.device()),
                    "Optimizer: the shadow of parameter ", name,
                    " must be a float16 or bfloat16 tensor of its shape and device, and the parameter float32");
}

/// Of a learning rate that is a tensor, where nothing has to be waited for.
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

Optimizer::Optimizer(ParamGroups groups, const StepOptions& options)
    : groups_(std::move(groups.groups_)), options_(options) {
  check_not_negative("Optimizer: lr", options.lr);
  check_not_negative("Optimizer: weight_decay", options.weight_decay);
  TORCH_CHECK_VALUE(options.max_grad_norm >= 0, "Optimizer: max_grad_norm must be at least 0, got ",
                    options.max_grad_norm);
  for (ParamGroup& group : groups_) {
    group.weight_decay = group.weight_decay.value_or(options.weight_decay);
  }
  check_groups(groups_);
}

void Optimizer::check_groups(const std::vector<ParamGroup>& groups) const {
  std::set<std::string> names;
  std::set<const void*> tensors;
  for (size_t g = 0; g < groups.size(); ++g) {
    check_not_negative(c10::str("Optimizer: weight_decay of group ", g), *groups[g].weight_decay);
    check_not_negative(c10::str("Optimizer: lr_scale of group ", g), groups[g].lr_scale);
    for (const NamedParameter& parameter : groups[g].params) {
      check_parameter(parameter, options_.stochastic_rounding_seed.has_value());
      TORCH_CHECK_VALUE(tensors.insert(parameter.tensor.unsafeGetTensorImpl()).second, "Optimizer: parameter ",
                        parameter.name, " is listed twice");
      TORCH_CHECK_VALUE(names.insert(parameter.name).second, "Optimizer: two parameters are named ", parameter.name,
                        ", and state is kept by name. Give those of one module a prefix before you pass them: "
                        "parameter.name = \"decoder.\" + parameter.name");
    }
  }
  TORCH_CHECK_VALUE(!names.empty(), "Optimizer: no parameters to train");
}

void Optimizer::add_param_group(ParamGroup group) {
  TORCH_CHECK_VALUE(!group.params.empty(), "Optimizer: add_param_group() got a group without parameters");
  group.weight_decay = group.weight_decay.value_or(options_.weight_decay);
  auto groups = groups_;
  groups.push_back(std::move(group));
  check_groups(groups);
  groups_ = std::move(groups);
}

double Optimizer::lr() const { return lr_tensor_.defined() ? lr_tensor_.item<double>() : options_.lr; }

void Optimizer::set_lr(double lr) {
  check_not_negative("Optimizer: lr", lr);
  if (lr_tensor_.defined()) {
    const at::NoGradGuard no_grad;
    lr_tensor_.fill_(lr);
  } else {
    options_.lr = lr;
  }
}

void Optimizer::set_lr(at::Tensor lr) {
  TORCH_CHECK_VALUE(lr.defined() && lr.dim() == 0 && lr.scalar_type() == at::kDouble && !lr.requires_grad(),
                    "Optimizer: a learning rate that is a tensor must be 0-dim, float64 and require no gradient, got ",
                    lr.defined() ? lr.toString() : "an undefined one",
                    lr.defined() ? c10::str(" of sizes ", lr.sizes()) : "");
  const bool is_at_hand = std::ranges::any_of(groups_, [&](const ParamGroup& group) {
    return std::ranges::any_of(group.params, [&](const auto& each) { return each.tensor.device() == lr.device(); });
  });
  TORCH_CHECK_VALUE(is_at_hand, "Optimizer: the learning rate is on ", lr.device(),
                    ", where no parameter is; move it to ", parameter_at(0).tensor.device());
  check_lr_value(lr);
  lr_tensor_ = std::move(lr);
}

void Optimizer::zero_grad() {
  for (ParamGroup& group : groups_) {
    for (NamedParameter& parameter : group.params) {
      parameter.tensor.mutable_grad().reset();
      if (parameter.shadow.defined()) {
        parameter.shadow.mutable_grad().reset();
      }
    }
  }
}

at::Tensor Optimizer::step(const Closure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  checked_.reset();
  apply(look(/*scale=*/{}, /*found_inf=*/{}, options_.max_grad_norm > 0));
  return loss;
}

std::optional<at::Tensor> Optimizer::check_gradients(const std::optional<at::Tensor>& scale) {
  const at::NoGradGuard no_grad;
  checked_.reset();
  if (!scale && options_.max_grad_norm == 0) {
    return std::nullopt;
  }
  auto found = look(scale, /*found_inf=*/{}, /*measures=*/true);
  if (!found.verdict.norm.defined()) {
    return at::Tensor();
  }
  checked_ = {scale, std::move(found)};
  return checked_->look.verdict.found_inf;
}

at::Tensor Optimizer::step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  const auto checked = std::exchange(checked_, std::nullopt);
  const bool is_of_these = checked && checked->scale.has_value() == grad_scale.has_value() &&
                           (!grad_scale || checked->scale->is_same(*grad_scale));
  auto found = is_of_these ? checked->look : look(grad_scale, found_inf, options_.max_grad_norm > 0);
  if (is_of_these) {  // others that agreed may have found more
    found.verdict.found_inf = either(found_inf, found.verdict.found_inf);
  }
  apply(found);
  return {};
}

void Optimizer::visit_parameters(const ParameterVisitor& visit) {
  for (ParamGroup& group : groups_) {
    for (NamedParameter& parameter : group.params) {
      const bool on_shadow = gradient_owner(parameter).is_same(parameter.shadow);
      visit(on_shadow ? parameter.shadow : parameter.tensor);
    }
  }
}

at::Tensor Optimizer::master_of(size_t index) const {
  const NamedParameter& parameter = parameter_at(index);
  return gradient_owner(parameter).is_same(parameter.shadow) ? parameter.tensor : at::Tensor();
}

std::string Optimizer::parameter_name(size_t index) const { return parameter_at(index).name; }

const NamedParameter& Optimizer::parameter_at(size_t index) const {
  for (const ParamGroup& group : groups_) {
    if (index < group.params.size()) {
      return group.params[index];
    }
    index -= group.params.size();
  }
  TORCH_INTERNAL_ASSERT(false, "Optimizer: there is no parameter ", index, " beyond the last");
}

/// Of all its parameters with gradients; makes the state of those that have none yet.
std::vector<ParameterUpdate> Optimizer::collect_updates() {
  std::vector<ParameterUpdate> updates;
  const bool has_step = all_slot_names().size() > slot_names().size();
  uint32_t index = 0;
  for (const ParamGroup& group : groups_) {
    for (const NamedParameter& parameter : group.params) {
      ParameterUpdate update{.param = parameter.tensor,
                             .gradient = dense_gradient(parameter),
                             .shadow = parameter.shadow,
                             .step = {},
                             .slots = {},
                             .lr = lr_tensor_.defined() ? group.lr_scale : options_.lr * group.lr_scale,
                             .weight_decay = *group.weight_decay,
                             .index = index++,
                             .rounding_seed = options_.stochastic_rounding_seed};
      if (!update.gradient.defined()) {
        continue;
      }
      auto& state = state_[parameter.name];
      if (state.empty()) {
        TORCH_CHECK(!RecordingScope::is_open() || all_slot_names().empty(), "Optimizer: parameter ", parameter.name,
                    " has its first gradient in a step that is recorded, and each replay would begin with its state "
                    "at 0; let a warm-up call give it a gradient");
        state = initial_state(parameter.tensor);
      }
      update.slots.assign(state.begin() + (has_step ? 1 : 0), state.end());
      if (has_step) {
        update.step = state.front();
      }
      updates.push_back(std::move(update));
    }
  }
  return updates;
}

/// What there is to know before a step: `found_inf`, a verdict given or undefined, and where it
/// `measures` them, what gradients divided by `scale` come to; on the device of `scale`, if given,
/// or else of the first gradient.
Optimizer::Look Optimizer::look(const std::optional<at::Tensor>& scale,
                                const at::Tensor& found_inf,
                                bool measures) const {
  const at::NoGradGuard no_grad;
  const double max_norm = options_.max_grad_norm;
  Look result{.verdict = {.is_measured = measures, .norm = {}, .sum_of_squares = {}, .found_inf = found_inf},
              .inv_scale = {},
              .clip = {}};
  GradientVerdict& verdict = result.verdict;
  if (measures) {
    GradientPass pass;
    for (const ParamGroup& group : groups_) {
      for (const NamedParameter& parameter : group.params) {
        if (dense_gradient(parameter).defined()) {
          pass.add(gradient_owner(parameter));
        }
      }
    }
    const auto found = pass.measure(scale.value_or(at::Tensor()), max_norm);
    verdict.norm = found.norm;
    verdict.sum_of_squares = found.sum_of_squares;
    verdict.found_inf = either(found_inf, found.found_inf);
    result.inv_scale = scale ? found.inv_scale : at::Tensor();
    result.clip = max_norm > 0 ? found.clip : at::Tensor();
  }
  if (scale && !result.inv_scale.defined()) {
    result.inv_scale = inverse_of(*scale);
  }
  if (verdict_hook_ && (measures || found_inf.defined())) {
    verdict = verdict_hook_(verdict);
    result.clip = verdict.norm.defined() && max_norm > 0 ? clip_factor(verdict.norm, max_norm) : at::Tensor();
  }
  return result;
}

/// Updates every parameter that has a gradient, unless the verdict says not to. Both norm and
/// verdict are the step's then.
void Optimizer::apply(const Look& look) {
  const at::NoGradGuard no_grad;
  check_lr_value(lr_tensor_);
  const auto updates_by_device = grouped(collect_updates(), [](const auto& each) { return each.param.device(); });
  grad_norm_ = look.verdict.norm;
  found_inf_ = look.verdict.found_inf;
  for (const auto& updates : updates_by_device) {
    const at::Device device = updates.front().param.device();
    update(updates, {copy_to(look.inv_scale, device), copy_to(look.clip, device), copy_to(found_inf_, device),
                     copy_to(lr_tensor_, device)});
  }
}

}  // namespace mezzo
