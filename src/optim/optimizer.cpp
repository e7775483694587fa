#include "mezzo/optim/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <set>
#include <utility>

#include "kernels/device_scalars.h"
#include "kernels/dtypes.h"
#include "kernels/grouped.h"
#include "scaling/gradient_pass.h"

namespace mezzo {
namespace {

/// The tensor whose gradient is the parameter's.
const at::Tensor& gradient_owner(const NamedParameter& parameter) {
  const auto& [name, tensor, shadow] = parameter;
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
  const auto& [name, tensor, shadow] = parameter;
  TORCH_CHECK_VALUE(tensor.defined() && tensor.is_leaf() && tensor.requires_grad(), "Optimizer: parameter ", name,
                    " cannot be trained: it must be a leaf tensor that requires a gradient");
  TORCH_CHECK_VALUE(!stochastic || tensor.scalar_type() != at::kHalf, "Optimizer: parameter ", name,
                    " is float16, which is not rounded stochastically; use bfloat16, or float32 master weights");
  TORCH_CHECK_VALUE(!shadow.defined() || (tensor.scalar_type() == at::kFloat && is_half(shadow.scalar_type()) &&
                                          shadow.sizes() == tensor.sizes() && shadow.device() == tensor.device()),
                    "Optimizer: the shadow of parameter ", name,
                    " must be a float16 or bfloat16 tensor of its shape and device, and the parameter float32");
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
  TORCH_CHECK_VALUE(options.lr >= 0, "Optimizer: lr must not be negative, got ", options.lr);
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
  for (const ParamGroup& group : groups) {
    for (const NamedParameter& parameter : group.params) {
      check_parameter(parameter, options_.stochastic_rounding_seed.has_value());
      TORCH_CHECK_VALUE(
          names.insert(parameter.name).second && tensors.insert(parameter.tensor.unsafeGetTensorImpl()).second,
          "Optimizer: parameter ", parameter.name, " is listed twice");
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
  apply(/*inv_scale=*/{}, look(/*inv_scale=*/{}, /*found_inf=*/{}, options_.max_grad_norm > 0));
  return loss;
}

std::optional<at::Tensor> Optimizer::check_gradients(const std::optional<at::Tensor>& scale) {
  const at::NoGradGuard no_grad;
  checked_.reset();
  if (!scale && options_.max_grad_norm == 0) {
    return std::nullopt;
  }
  const auto inv_scale = scale ? inverse_of(*scale) : at::Tensor();
  const auto scale_is_lost = scale ? (*scale * inv_scale).isfinite().logical_not().to(at::kFloat) : at::Tensor();
  const auto verdict = look(inv_scale, scale_is_lost, /*measures=*/true);
  if (!verdict.norm.defined()) {
    return at::Tensor();
  }
  checked_ = {scale, verdict};
  return verdict.found_inf;
}

at::Tensor Optimizer::step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  const auto inv_scale = grad_scale ? inverse_of(*grad_scale) : at::Tensor();
  const auto checked = std::exchange(checked_, std::nullopt);
  const bool is_of_these = checked && checked->scale.has_value() == grad_scale.has_value() &&
                           (!grad_scale || checked->scale->is_same(*grad_scale));
  auto verdict = is_of_these ? checked->verdict : look(inv_scale, found_inf, options_.max_grad_norm > 0);
  if (is_of_these) {
    verdict.found_inf = either(found_inf, verdict.found_inf);  // others that agreed may have found more
  }
  apply(inv_scale, verdict);
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
                             .lr = options_.lr * group.lr_scale,
                             .weight_decay = *group.weight_decay,
                             .index = index++,
                             .rounding_seed = options_.stochastic_rounding_seed};
      if (!update.gradient.defined()) {
        continue;
      }
      auto& state = state_[parameter.name];
      if (state.empty()) {
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
/// `measures` them, what the gradients come to; on the device of `inv_scale`, if defined, or
/// else of the first gradient.
GradientVerdict Optimizer::look(const at::Tensor& inv_scale, const at::Tensor& found_inf, bool measures) const {
  const at::NoGradGuard no_grad;
  GradientVerdict verdict{.is_measured = measures, .norm = {}, .sum_of_squares = {}, .found_inf = found_inf};
  if (measures) {
    GradientPass pass;
    for (const ParamGroup& group : groups_) {
      for (const NamedParameter& parameter : group.params) {
        if (dense_gradient(parameter).defined()) {
          pass.add(gradient_owner(parameter));
        }
      }
    }
    const auto found = pass.measure(inv_scale);
    verdict.norm = found.norm;
    verdict.sum_of_squares = found.sum_of_squares;
    verdict.found_inf = either(found_inf, found.found_inf);
  }
  return verdict_hook_ && (measures || found_inf.defined()) ? verdict_hook_(verdict) : verdict;
}

/// Updates every parameter that has a gradient, unless the verdict says not to. Both norm and
/// verdict are the step's then.
void Optimizer::apply(const at::Tensor& inv_scale, const GradientVerdict& verdict) {
  const at::NoGradGuard no_grad;
  grad_norm_ = verdict.norm;
  found_inf_ = verdict.found_inf;
  const bool clips = grad_norm_.defined() && options_.max_grad_norm > 0;
  const auto clip = clips ? clip_factor(grad_norm_, options_.max_grad_norm) : at::Tensor();
  for (const auto& updates : grouped(collect_updates(), [](const auto& each) { return each.param.device(); })) {
    const at::Device device = updates.front().param.device();
    update(updates, {copy_to(inv_scale, device), copy_to(clip, device), copy_to(found_inf_, device)});
  }
}

}  // namespace mezzo
