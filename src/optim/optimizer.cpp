#include "mezzo/optim/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <utility>

#include "kernels/device_scalars.h"
#include "kernels/is_half.h"
#include "kernels/optimizer_kernels.h"

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
  TORCH_CHECK_VALUE(!share_,
                    "Optimizer: add_param_group() was called after set_share(); add the group before the "
                    "parameters are shared out");
  TORCH_CHECK_VALUE(!group.params.empty(), "Optimizer: add_param_group() got a group without parameters");
  group.weight_decay = group.weight_decay.value_or(options_.weight_decay);
  auto groups = groups_;
  groups.push_back(std::move(group));
  check_groups(groups);
  groups_ = std::move(groups);
}

void Optimizer::set_share(OptimizerShare share) {
  TORCH_CHECK_VALUE(share.add_up && share.hand_out, "Optimizer: a share needs both functions, add_up and hand_out");
  TORCH_CHECK_VALUE(state_.empty(),
                    "Optimizer: set_share() was called when there was state already; call it right "
                    "after construction");
  std::set<std::string> unknown = share.parameters;
  for (const ParamGroup& group : groups_) {
    for (const NamedParameter& parameter : group.params) {
      unknown.erase(parameter.name);
    }
  }
  TORCH_CHECK_VALUE(unknown.empty(), "Optimizer: the share has a parameter ", *unknown.begin(),
                    ", which this optimizer has not");
  share_ = std::move(share);
}

bool Optimizer::owns(const NamedParameter& parameter) const {
  return !share_ || share_->parameters.contains(parameter.name);
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
  apply(/*inv_scale=*/{}, /*found_inf=*/{}, std::nullopt);
  return loss;
}

std::optional<at::Tensor> Optimizer::check_gradients(const std::optional<at::Tensor>& scale) {
  const at::NoGradGuard no_grad;
  checked_.reset();
  if (!scale && options_.max_grad_norm == 0) {
    return std::nullopt;
  }
  const auto inv_scale = scale ? inverse_of(*scale) : at::Tensor();
  Summary summary = summarize(inv_scale, /*found_inf=*/{});
  if (!summary.norm.defined()) {
    return at::Tensor();
  }
  if (scale) {
    const auto scale_is_lost = (*scale * inv_scale).isfinite().logical_not().to(at::kFloat);
    summary.found_inf = either(scale_is_lost, summary.found_inf);
  }
  checked_ = {scale, summary};
  return summary.found_inf;
}

at::Tensor Optimizer::step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  const auto checked = std::exchange(checked_, std::nullopt);
  const bool is_of_these = checked && checked->scale.has_value() == grad_scale.has_value() &&
                           (!grad_scale || checked->scale->is_same(*grad_scale));
  apply(grad_scale ? inverse_of(*grad_scale) : at::Tensor(), found_inf,
        is_of_these ? std::optional(checked->summary) : std::nullopt);
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

bool Optimizer::allows_half_gradients() const {
  for (const ParamGroup& group : groups_) {
    for (const NamedParameter& parameter : group.params) {
      if (owns(parameter) && parameter.tensor.scalar_type() == at::kHalf) {
        return false;
      }
    }
  }
  return true;
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

/// The gradient to update a parameter from; undefined where there is none, or another share updates it.
at::Tensor Optimizer::own_gradient(const NamedParameter& parameter) const {
  const at::Tensor& gradient = gradient_owner(parameter).grad();
  if (!gradient.defined() || !owns(parameter)) {
    return {};
  }
  TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "Optimizer: the gradient of parameter ", parameter.name,
                    " is sparse, which this optimizer does not take");
  return gradient;
}

/// Of all its parameters with gradients; makes the state of those that have none yet.
std::vector<ParameterUpdate> Optimizer::collect_updates() {
  std::vector<ParameterUpdate> updates;
  const bool has_step = all_slot_names().size() > slot_names().size();
  uint32_t index = 0;
  for (const ParamGroup& group : groups_) {
    for (const NamedParameter& parameter : group.params) {
      ParameterUpdate update{.param = parameter.tensor,
                             .gradient = own_gradient(parameter),
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

/// Of all gradients there are, on the device of `inv_scale`, if defined, or else of the first gradient; an undefined
/// norm if there is none. `found_inf`, if defined, is another verdict that all shares are to agree on.
Optimizer::Summary Optimizer::summarize(const at::Tensor& inv_scale, const at::Tensor& found_inf) const {
  const Summary own = summarize_own(inv_scale);
  return share_ ? total_of_shares(own, found_inf) : own;
}

Optimizer::Summary Optimizer::total_of_shares(const Summary& own, const at::Tensor& found_inf) const {
  const bool has_gradients = own.norm.defined();
  const auto device = has_gradients ? own.norm.device() : found_inf.defined() ? found_inf.device() : first_device();
  const auto number = at::TensorOptions(device).dtype(at::kDouble);
  const auto zero = at::zeros({}, number);
  const auto verdict = either(own.found_inf, found_inf);
  auto values =
      at::stack({has_gradients ? own.sum_of_squares : zero, verdict.defined() ? verdict.to(at::kDouble) : zero,
                 has_gradients ? at::ones({}, number) : zero});
  share_->add_up(values);
  const auto norm = values[0].sqrt().to(at::kFloat);
  const auto found = values[1].gt(0).logical_or(norm.isfinite().logical_not()).to(at::kFloat);
  // Waits for the device only where this share had no gradient.
  const bool any_gradients = has_gradients || values[2].item<double>() > 0;
  return any_gradients ? Summary{norm, found, values[0]} : Summary{{}, found, {}};
}

at::Device Optimizer::first_device() const {
  const auto group =
      std::find_if(groups_.begin(), groups_.end(), [](const auto& each) { return !each.params.empty(); });
  return group->params.front().tensor.device();
}

/// `found_inf`, or that of any other share.
at::Tensor Optimizer::agreed(const at::Tensor& found_inf) const {
  auto values = found_inf.to(at::kDouble).reshape({1});
  share_->add_up(values);
  return values[0].gt(0).to(at::kFloat);
}

Optimizer::Summary Optimizer::summarize_own(const at::Tensor& inv_scale) const {
  std::map<std::string, std::vector<at::Tensor>> gradients;  // by device
  std::optional<at::Device> device = inv_scale.defined() ? std::optional(inv_scale.device()) : std::nullopt;
  for (const ParamGroup& group : groups_) {
    for (const NamedParameter& parameter : group.params) {
      if (const auto gradient = own_gradient(parameter); gradient.defined()) {
        device = device.value_or(gradient.device());
        gradients[gradient.device().str()].push_back(gradient);
      }
    }
  }
  std::vector<at::Tensor> norms, sums;
  at::Tensor found_inf;
  for (const auto& [name, tensors] : gradients) {
    const auto summary = kernels::summarize_gradients(tensors, copy_to(inv_scale, tensors.front().device()));
    norms.push_back(copy_to(summary.norm, *device));
    sums.push_back(copy_to(summary.sum_of_squares, *device));
    found_inf = either(found_inf, copy_to(summary.found_inf, *device));
  }
  if (norms.size() > 1) {
    norms = {at::linalg_vector_norm(at::stack(norms))};
  }
  return norms.empty() ? Summary{} : Summary{norms.front(), found_inf, at::stack(sums).sum()};
}

/// `summary`: of these gradients, if it is known already.
void Optimizer::apply(const at::Tensor& inv_scale, const at::Tensor& found_inf, const std::optional<Summary>& summary) {
  const at::NoGradGuard no_grad;
  const bool measure = options_.max_grad_norm > 0 && !summary;
  const Summary known = measure ? summarize(inv_scale, found_inf) : summary.value_or(Summary{});
  const bool is_agreed = !share_ || measure || summary || !found_inf.defined();
  grad_norm_ = known.norm;
  found_inf_ = either(is_agreed ? found_inf : agreed(found_inf), known.found_inf);
  at::Tensor clip;
  if (known.norm.defined() && options_.max_grad_norm > 0) {
    const auto wanted = (known.norm + 1e-6).reciprocal() * options_.max_grad_norm;  // as clip_grad_norm_
    clip = at::clamp(wanted, /*min=*/std::nullopt, /*max=*/1.0);
  }
  std::map<std::string, std::vector<ParameterUpdate>> by_device;
  for (ParameterUpdate& update : collect_updates()) {
    by_device[update.param.device().str()].push_back(std::move(update));
  }
  for (const auto& [name, updates] : by_device) {
    const at::Device device = updates.front().param.device();
    update(updates, {copy_to(inv_scale, device), copy_to(clip, device), copy_to(found_inf_, device)});
  }
  if (share_) {
    share_->hand_out(found_inf_);
  }
}

}  // namespace mezzo
