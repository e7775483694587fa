#pragma once

#include <c10/core/DeviceType.h>
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
class FunctionScope;
class ForwardScope;
class BackwardScope;
}  // namespace detail

/// What an AutocastGuard may carry besides a dtype.
struct AutocastOptions {
  /// false makes a full-precision region inside an autocast one.
  TORCH_ARG(bool, enabled) = true;
  /// Whether casts of float32 leaf parameters are kept until the outermost region ends; nullopt keeps the current
  /// setting (initially true).
  TORCH_ARG(std::optional<bool>, cache_enabled);
  /// The op list; nullopt: the enclosing region's, or else PyTorch's own, whatever this LibTorch's is.
  TORCH_ARG(std::optional<OpPolicy>, policy);
  /// Where casts are recorded; nullptr: the enclosing region's log, if any. Must outlive the guard.
  using CastLogPointer = CastLog*;
  TORCH_ARG(CastLogPointer, log) = nullptr;
};

/// Runs the enclosing scope under autocast: ops on `device_type` follow
/// PyTorch's op lists, so matrix products run in `dtype` and losses in float32.
///
/// Guards nest, also with a disabled region inside an enabled one; each
/// restores exactly the state it found, on exceptions too. Thread-local, like
/// `torch::NoGradGuard`, and the very state that Python's `torch.autocast`
/// sets, so C++ and Python regions nest in each other. A worker thread needs
/// its own guard, or the function wrapper `autocast()`. Never syncs the device.
///
/// With a policy, ops on `device_type` follow that op list in this scope
/// and thread alone, and in guards nested in it, which keep the policy unless
/// they carry their own. Without, ops run PyTorch's own autocast kernels; a log
/// watches these and changes nothing. Every op called in a region with a policy
/// or a log costs a fraction of a microsecond more.
/// Casts of parameters are kept by PyTorch, in a cache that all threads share and
/// that does not see an in-place update within a region; under a policy
/// they are kept by mezzo, for each thread, and an updated one is cast again.
///
/// A region for a device this process has no tensors on is legal and does
/// nothing; tensors on other devices are not touched. The first for CUDA where
/// LibTorch has none, or no GPU, warns.
///
/// Example:
/// @code
/// torch::Tensor loss;
/// {
///   mezzo::AutocastGuard autocast(torch::kCUDA, torch::kHalf);
///   loss = loss_fn(model->forward(input_ids), labels);
/// }  // backward runs outside, as in Python
/// scaler.scale(loss).backward();
/// @endcode
///
/// @see torch.autocast (Python). Differs: a dtype the device type cannot
/// autocast to is an error, where Python warns and switches autocast off.
class AutocastGuard {
  struct Found;

 public:
  /// @param dtype  kHalf or kBFloat16.
  /// @param enabled  false makes a full-precision region inside an autocast one.
  /// @param cache_enabled  whether casts of float32 leaf parameters are kept
  ///     until the outermost region ends; nullopt keeps the current setting
  ///     (initially true).
  /// @throws c10::ValueError  for any other `dtype`, or a device type that has
  ///     no autocast; no state has changed then.
  AutocastGuard(c10::DeviceType device_type,
                c10::ScalarType dtype,
                bool enabled = true,
                std::optional<bool> cache_enabled = std::nullopt);

  /// With a policy or a log.
  /// @throws c10::Error  also where another library, or another version of mezzo in this process, has taken what
  ///     these need of LibTorch's dispatcher; no state has changed then.
  AutocastGuard(c10::DeviceType device_type, c10::ScalarType dtype, const AutocastOptions& options);

  /// With the device type's current autocast dtype, as `torch.autocast("cpu")`:
  /// initially kBFloat16 on CPU, kHalf on CUDA. Float32, which only Python sets,
  /// makes a region that casts to it.
  explicit AutocastGuard(c10::DeviceType device_type);

  /// A full-precision region: `auto full = mezzo::AutocastGuard::disabled(torch::kCUDA);`
  [[nodiscard]] static AutocastGuard disabled(c10::DeviceType device_type);

  /// Puts back a state that a thread had; none but mezzo's own scopes can name it.
  AutocastGuard(c10::DeviceType device_type, const Found& state, std::optional<bool> cache_enabled = std::nullopt);

  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  friend class detail::FunctionScope;
  friend class detail::ForwardScope;
  friend class detail::BackwardScope;
  struct Found {
    explicit Found(c10::ScalarType its_dtype, bool is_enabled) : dtype(its_dtype), enabled(is_enabled) {}
    c10::ScalarType dtype;
    bool enabled;
  };
  c10::DeviceType device_type_;
  bool previous_enabled_;
  c10::ScalarType previous_dtype_;
  bool previous_cache_enabled_;
  std::unique_ptr<PolicyRegionGuard> policy_region_;
};

/// How many casts of parameters this thread's regions with a policy keep; none
/// outside of them.
size_t autocast_cache_size();

/// Wraps `function` so that each call runs under an AutocastGuard of its own:
/// the counterpart of Python's `@torch.autocast(...)` decorator.
///
/// The region is opened on the thread that calls, so the result may be handed
/// to any thread. Arguments and result pass through unchanged (references stay
/// references). As thread-safe as `function` itself.
///
/// @param device_type, dtype, enabled, cache_enabled  as for AutocastGuard;
///     checked at each call.
///
/// Example:
/// @code
/// auto forward = mezzo::autocast(torch::kCPU, torch::kBFloat16,
///     [&](const torch::Tensor& x) { return model->forward(x); });
/// std::thread worker([&] { output = forward(input); });
/// @endcode
template <class Function>
[[nodiscard]] auto autocast(c10::DeviceType device_type,
                            c10::ScalarType dtype,
                            Function&& function,
                            bool enabled = true,
                            std::optional<bool> cache_enabled = std::nullopt) {
  return [=, wrapped = std::forward<Function>(function)]<class... Args>(
             Args&&... args) mutable -> std::invoke_result_t<std::decay_t<Function>&, Args...> {
    AutocastGuard guard(device_type, dtype, enabled, cache_enabled);
    return std::invoke(wrapped, std::forward<Args>(args)...);
  };
}

/// The same with a policy or a log.
template <class Function>
[[nodiscard]] auto autocast(c10::DeviceType device_type,
                            c10::ScalarType dtype,
                            Function&& function,
                            AutocastOptions options) {
  return [device_type, dtype, options = std::move(options), wrapped = std::forward<Function>(function)]<class... Args>(
             Args&&... args) mutable -> std::invoke_result_t<std::decay_t<Function>&, Args...> {
    AutocastGuard guard(device_type, dtype, options);
    return std::invoke(wrapped, std::forward<Args>(args)...);
  };
}

}  // namespace mezzo
