#include "mezzo/amp/autocast_guard.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>

#include "amp/named_overflow.h"
#include "amp/policy_region.h"
#include "amp/pytorch_cast_cache.h"
#include "kernels/dtypes.h"
#include "mezzo/amp/op_lists.h"

namespace mezzo {
namespace {

c10::DeviceType checked_device_type(c10::Device device) {
  const auto device_type = device.type();
  TORCH_CHECK_VALUE(at::autocast::is_autocast_available(device_type), "autocast: device type ",
                    c10::DeviceTypeName(device_type, /*lower_case=*/true),
                    " has no autocast. Pass the device type of the model's tensors, such as cpu or cuda.");
  return device_type;
}

/// A backend from outside of LibTorch has autocast kernels once its library is loaded.
void check_has_kernels(c10::DeviceType device_type) {
  static std::array<std::atomic<bool>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> has_kernels{};
  auto& known = has_kernels[static_cast<size_t>(device_type)];
  TORCH_CHECK_VALUE(
      known || !autocast_ops(device_type).empty(), "autocast: no op has an autocast kernel for device type ",
      c10::DeviceTypeName(device_type, /*lower_case=*/true),
      ", so autocast would change nothing. Load the library of that backend first, or pass an op policy.");
  known = true;
}

/// kFloat, for a region that is not enabled, leaves the dtype as it is.
detail::AutocastSetting checked_setting(c10::DeviceType device_type, c10::ScalarType dtype, bool enabled) {
  if (dtype == at::kFloat && !enabled) {
    dtype = at::autocast::get_autocast_dtype(device_type);
  } else {
    TORCH_CHECK_VALUE(is_half(dtype), "autocast: dtype must be float16 or bfloat16, got ", dtype_name(dtype),
                      ". For a full-precision scope, set the option enabled to false.");
  }
  return {dtype, enabled};
}

}  // namespace

AutocastGuard::AutocastGuard(c10::Device device)
    : AutocastGuard(device,
                    detail::AutocastSetting{at::autocast::get_autocast_dtype(checked_device_type(device)), true}) {}

AutocastGuard AutocastGuard::disabled(c10::Device device) { return {device, at::kFloat, /*enabled=*/false}; }

AutocastGuard::AutocastGuard(c10::Device device, c10::ScalarType dtype, bool enabled, std::optional<bool> cache_enabled)
    : AutocastGuard(device, checked_setting(checked_device_type(device), dtype, enabled), cache_enabled) {}

AutocastGuard::AutocastGuard(c10::Device device,
                             const detail::AutocastSetting& setting,
                             std::optional<bool> cache_enabled)
    : AutocastGuard(device, setting, cache_enabled, PolicyRegion::has_policy(device.type())) {}

AutocastGuard::AutocastGuard(c10::Device device,
                             const detail::AutocastSetting& setting,
                             std::optional<bool> cache_enabled,
                             bool has_policy)
    : device_type_(device.type()),
      previous_enabled_(at::autocast::is_autocast_enabled(device_type_)),
      previous_dtype_(at::autocast::get_autocast_dtype(device_type_)),
      previous_cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  if (setting.enabled && device_type_ == at::kCUDA && !at::hasCUDA()) {
    TORCH_WARN_ONCE(
        "autocast: a region for CUDA has no effect, because this process has no GPU. Pass the device type of the "
        "model's "
        "tensors.");
  }
  if (setting.enabled && !has_policy) {
    check_has_kernels(device_type_);
  }
  if (setting.enabled && setting.dtype == at::kHalf) {
    name_ops_in_overflow_errors(device_type_);
  }
  bool keeps_casts = cache_enabled.value_or(previous_cache_enabled_);
  if (keeps_casts && setting.enabled && is_half(setting.dtype) && !has_policy) {
    keeps_casts = uses_cast_cache_ = PyTorchCastCache::begin_use(device_type_, setting.dtype);
  }
  at::autocast::set_autocast_enabled(device_type_, setting.enabled);
  at::autocast::set_autocast_dtype(device_type_, setting.dtype);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(keeps_casts);
}

AutocastGuard::AutocastGuard(c10::Device device, c10::ScalarType dtype, const AutocastOptions& options)
    : AutocastGuard(device,
                    checked_setting(checked_device_type(device), dtype, options.enabled()),
                    options.cache_enabled(),
                    options.policy().has_value() || PolicyRegion::has_policy(device.type())) {
  if (options.policy() || options.log() != nullptr) {
    const PolicyRegion* outer = PolicyRegion::current(device_type_);
    PolicyRegion region = outer != nullptr ? *outer : PolicyRegion();
    if (options.policy()) {
      region.policy = table_of(*options.policy());
    }
    if (options.log() != nullptr) {
      region.log = options.log();
    }
    policy_region_ = std::make_unique<PolicyRegionGuard>(device_type_, std::move(region));
  }
}

AutocastGuard::~AutocastGuard() {
  policy_region_.reset();
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(device_type_, previous_enabled_);
  at::autocast::set_autocast_dtype(device_type_, previous_dtype_);
  at::autocast::set_autocast_cache_enabled(previous_cache_enabled_);
  if (uses_cast_cache_) {
    PyTorchCastCache::end_use(device_type_);
  }
}

}  // namespace mezzo
