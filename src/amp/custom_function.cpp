#include "mezzo/amp/custom_function.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include "amp/policy_region.h"
#include "amp/tensor_caster.h"

namespace mezzo::detail {
namespace {

const std::string kCustomFwd = "custom_fwd";  // in logs
constexpr const char* kSavedState = "mezzo autocast state";

/// The autocast state of a forward, for its backward.
struct SavedState : torch::CustomClassHolder {
  bool enabled;
  c10::ScalarType dtype;
  std::shared_ptr<const OpPolicyTable> policy;  // null: none
};

/// The line of a registered function in the policy in force, if it has one.
std::optional<CastPolicy> policy_in_force(c10::DeviceType device_type, const std::string& name) {
  if (!PolicyRegion::has_policy(device_type)) {
    return std::nullopt;
  }
  const auto& functions = PolicyRegion::current(device_type)->policy->functions;
  const auto line = functions.find(name);
  return line == functions.end() ? std::nullopt : std::optional(line->second);
}

}  // namespace

void register_function(const std::string& name, CastPolicy policy) {
  TORCH_CHECK_VALUE(name.find("::") != std::string::npos, "autocast_function: the name '", name,
                    "' needs a namespace, such as mylib::", name);
  check_function_policy(name, policy);
  register_function_name(name);
}

FunctionScope::FunctionScope(const std::string& name, CastPolicy policy, c10::DeviceType device_type)
    : name_(name), policy_(policy), device_type_(device_type) {
  if (!at::autocast::is_autocast_enabled(device_type)) {
    return;
  }
  policy_ = policy_in_force(device_type, name).value_or(policy);
  log_ = PolicyRegion::current_log(device_type);
  const auto low = at::autocast::get_autocast_dtype(device_type);
  switch (policy_) {
    case CastPolicy::kUntouched: return;
    case CastPolicy::kBanned: TensorCaster(device_type, name_, policy_, log_).refuse();
    case CastPolicy::kLowerPrecision:
    case CastPolicy::kPromote: to_ = low; break;
    default: to_ = at::kFloat;
  }
  off_.emplace(device_type, AutocastSetting{low, false});
}

void FunctionScope::consider(const at::Tensor& tensor) {
  if (to_ && policy_ == CastPolicy::kPromote) {
    to_ = TensorCaster(device_type_, name_, policy_, log_).promoted(*to_, tensor);
  }
}

at::Tensor FunctionScope::cast(const at::Tensor& tensor) const {
  return to_ ? TensorCaster(device_type_, name_, policy_, log_).cast(tensor, *to_) : tensor;
}

ForwardScope::ForwardScope(torch::autograd::AutogradContext* ctx,
                           c10::DeviceType device_type,
                           std::optional<c10::ScalarType> cast_inputs)
    : device_type_(device_type) {
  auto state = c10::make_intrusive<SavedState>();
  const bool enabled = at::autocast::is_autocast_enabled(device_type);
  state->enabled = enabled && !cast_inputs;
  state->dtype = at::autocast::get_autocast_dtype(device_type);
  if (const auto* region = PolicyRegion::current(device_type)) {
    state->policy = region->policy;
  }
  if (enabled && cast_inputs) {
    to_ = cast_inputs;
    off_.emplace(device_type, AutocastSetting{state->dtype, false});
  }
  ctx->saved_data[kSavedState] = c10::IValue::make_capsule(std::move(state));
}

at::Tensor ForwardScope::cast(const at::Tensor& tensor) const {
  if (!to_) {
    return tensor;
  }
  const auto policy = *to_ == at::kFloat ? CastPolicy::kFloat32 : CastPolicy::kLowerPrecision;
  return TensorCaster(device_type_, kCustomFwd, policy, PolicyRegion::current_log(device_type_)).convert(tensor, *to_);
}

BackwardScope::BackwardScope(torch::autograd::AutogradContext* ctx, c10::DeviceType device_type) {
  const auto saved = ctx->saved_data.find(kSavedState);
  TORCH_CHECK(saved != ctx->saved_data.end(),
              "custom_bwd: this function's forward did not run through custom_fwd. Call custom_fwd in forward with the "
              "same context.");
  const auto state = c10::static_intrusive_pointer_cast<SavedState>(saved->second.toCapsule());
  autocast_.emplace(device_type, AutocastSetting{state->dtype, state->enabled});
  if (state->policy || PolicyRegion::has_policy(device_type)) {  // the caller's, which may be another, is not its own
    policy_region_ = std::make_unique<PolicyRegionGuard>(
        device_type, PolicyRegion{state->policy, PolicyRegion::current_log(device_type)});
  }
}

BackwardScope::~BackwardScope() = default;

}  // namespace mezzo::detail
