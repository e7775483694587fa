#pragma once

#include "mezzo/cpp20.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/arg.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "mezzo/amp/op_policy.h"

namespace mezzo {

class CastLog;
class PolicyRegionGuard;

namespace detail {
/// The autocast setting of a device type. Python can also set float32.
struct AutocastSetting {
  c10::ScalarType dtype;
  bool enabled;
};
}  // namespace detail

/// Options of an AutocastGuard, except device and dtype.
struct AutocastOptions {
  /// false: a full-precision region inside an autocast region.
  TORCH_ARG(bool, enabled) = true;
  /// Whether casts of float32 leaf parameters are kept until the outermost region ends. nullopt
  /// keeps the current setting (initially true).
  TORCH_ARG(std::optional<bool>, cache_enabled);
  /// The op list. nullopt: the list of the enclosing region, or else the list of this LibTorch.
  TORCH_ARG(std::optional<OpPolicy>, policy);
  /// The pointer type of `log`.
  using CastLogPointer = CastLog*;
  /// Records the casts. nullptr: the log of the enclosing region, if any. Must outlive the guard.
  TORCH_ARG(CastLogPointer, log) = nullptr;
};

/// Runs the enclosing scope under autocast. Ops on `device_type` follow PyTorch's op lists, so
/// matrix products run in `dtype` and losses in float32. Tensors on other devices are not touched.
///
/// Guards nest, also a disabled region in an enabled one. Each restores the previous state, also on
/// exceptions. Never syncs the device. Warns once if enabled for CUDA in a process without a GPU.
///
/// The state is thread-local and shared with Python's `torch.autocast`, so C++ and Python regions
/// nest in each other. Another thread needs a separate guard, the wrapper `autocast()`, or an
/// AutocastStateGuard.
///
/// The first guard in kHalf registers kernels for 28 ops that take numbers, such as `masked_fill`,
/// `fill_` and `clamp`. They stay registered for all threads, also for Python's regions. They
/// change no result. If a number does not fit float16, their error names the op. A call takes 0.4
/// us longer.
///
/// An op policy or a log holds for this scope and thread, and in nested guards that set none. Each
/// costs every op in the region a fraction of a microsecond.
///
/// PyTorch's cache of cast parameters is shared by all threads. It ignores dtypes, and misses an
/// in-place update within a region. So for each device type only guards of one dtype at a time use
/// it. A guard of another dtype, nested or on another thread, casts a parameter at each use.
///
/// Python's regions do not follow this rule. Inside a guard of another dtype, or while one is open
/// on another thread, they need `cache_enabled=False`. Under a policy, each thread uses mezzo's
/// cache. Its keys include the dtype, and it casts an updated parameter again.
///
/// @code
/// torch::Tensor loss;
/// {
///   mezzo::AutocastGuard autocast(torch::kCUDA, torch::kHalf);
///   loss = loss_fn(model->forward(input_ids), labels);
/// }  // backward runs outside, as in Python
/// scaler.scale(loss).backward();
/// @endcode
///
/// For a dtype that is chosen at run time, including kFloat, and the device of a tensor:
/// @code
/// mezzo::AutocastGuard autocast(x.device(), dtype, /*enabled=*/dtype != torch::kFloat);
/// @endcode
///
/// @see torch.autocast (Python). Differs: an unsupported dtype is an error. Python warns and
///     switches autocast off.
class AutocastGuard {
 public:
  /// @param device  Only its type counts, such as kCUDA: a region covers all devices of that type.
  /// @param dtype  kHalf or kBFloat16; also kFloat if `enabled` is false
  /// @param enabled  false: a full-precision region inside an autocast region
  /// @param cache_enabled  whether casts of float32 leaf parameters are kept until the outermost
  ///     region ends; nullopt keeps the current setting (initially true)
  /// @throws c10::ValueError  for any other `dtype`, and for a device type without autocast. If
  ///     enabled without a policy, also for a device type without any autocast kernel. No state has
  ///     changed then.
  [[nodiscard]] AutocastGuard(c10::Device device,
                              c10::ScalarType dtype,
                              bool enabled = true,
                              std::optional<bool> cache_enabled = std::nullopt);

  /// With a policy or a log.
  /// @throws c10::Error  also if another library in this process has taken the dispatch key of
  ///     policies and logs, or holds a second copy of mezzo; no state has changed then
  [[nodiscard]] AutocastGuard(c10::Device device, c10::ScalarType dtype, const AutocastOptions& options);

  /// With the current autocast dtype of the device type, as `torch.autocast("cpu")`: initially
  /// kBFloat16 on CPU, kHalf on CUDA. Only Python can set float32; such a region casts to float32.
  [[nodiscard]] explicit AutocastGuard(c10::Device device);

  /// A full-precision region: `auto full = mezzo::AutocastGuard::disabled(torch::kCUDA);`
  [[nodiscard]] static AutocastGuard disabled(c10::Device device);

  /// Restores the setting of a thread, with any dtype.
  [[nodiscard]] AutocastGuard(c10::Device device,
                              const detail::AutocastSetting& setting,
                              std::optional<bool> cache_enabled = std::nullopt);

  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastGuard(c10::Device device,
                const detail::AutocastSetting& setting,
                std::optional<bool> cache_enabled,
                bool has_policy);

  c10::DeviceType device_type_;
  bool previous_enabled_;
  c10::ScalarType previous_dtype_;
  bool previous_cache_enabled_;
  bool uses_cast_cache_ = false;
  std::unique_ptr<PolicyRegionGuard> policy_region_;
};

/// The number of parameter casts that this thread's regions with a policy keep; 0 outside of them.
size_t autocast_cache_size();

namespace detail {

/// A function whose calls run under an AutocastGuard.
template <class Function>
class AutocastFunction {
 public:
  AutocastFunction(c10::Device device, c10::ScalarType dtype, Function function, AutocastOptions options)
      : device_(device), dtype_(dtype), function_(std::move(function)), options_(std::move(options)) {}

  template <class... Args>
  std::invoke_result_t<const Function&, Args...> operator()(Args&&... args) const {
    const AutocastGuard guard(device_, dtype_, options_);
    return std::invoke(function_, std::forward<Args>(args)...);
  }
  template <class... Args>
  std::invoke_result_t<Function&, Args...> operator()(Args&&... args) {
    const AutocastGuard guard(device_, dtype_, options_);
    return std::invoke(function_, std::forward<Args>(args)...);
  }

 private:
  c10::Device device_;
  c10::ScalarType dtype_;
  Function function_;
  AutocastOptions options_;
};

}  // namespace detail

/// Wraps `function`: each call runs under an AutocastGuard, on any thread, as with Python's
/// `@torch.autocast(...)` decorator. Arguments and result pass through unchanged, references as
/// references. As thread-safe as `function`; const if a const `function` can be called.
///
/// The other parameters are AutocastGuard's, and each call checks them.
///
/// @code
/// const auto forward = mezzo::autocast(torch::kCPU, torch::kBFloat16,
///     [&](const torch::Tensor& x) { return model->forward(x); });
/// std::thread worker([&] { output = forward(input); });
/// @endcode
template <class Function>
[[nodiscard]] auto autocast(c10::Device device, c10::ScalarType dtype, Function&& function, AutocastOptions options) {
  return detail::AutocastFunction<std::decay_t<Function>>(device, dtype, std::forward<Function>(function),
                                                          std::move(options));
}

/// The same without a policy or a log.
template <class Function>
[[nodiscard]] auto autocast(c10::Device device,
                            c10::ScalarType dtype,
                            Function&& function,
                            bool enabled = true,
                            std::optional<bool> cache_enabled = std::nullopt) {
  return autocast(device, dtype, std::forward<Function>(function),
                  AutocastOptions().enabled(enabled).cache_enabled(cache_enabled));
}

}  // namespace mezzo
