#pragma once

/// Python's names for mezzo::AutocastGuard and mezzo::GradScaler, in LibTorch's namespaces:
/// `torch::amp::autocast`, `torch::amp::GradScaler`, `torch::cuda::amp::autocast` and
/// `torch::cuda::amp::GradScaler`. LibTorch does not declare these names. A later LibTorch may
/// declare them, so mezzo.h does not include this header.

#include "mezzo/cpp20.h"

#include <ATen/autocast_mode.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/custom_function.h"
#include "mezzo/amp/grad_scaler.h"

namespace torch::amp {

/// An AutocastGuard with the arguments of Python's `torch.amp.autocast`.
/// @code
/// torch::amp::autocast autocast(torch::kCUDA, torch::kHalf);
/// torch::amp::autocast autocast("cuda");  // in the device type's own dtype: float16; on the CPU bfloat16
/// @endcode
class autocast : public mezzo::AutocastGuard {
 public:
  /// The arguments are in Python's order.
  /// @param dtype  nullopt: kHalf for CUDA, kBFloat16 for the CPU, unless Python set another dtype
  [[nodiscard]] explicit autocast(c10::Device device,
                                  std::optional<c10::ScalarType> dtype = std::nullopt,
                                  bool enabled = true,
                                  std::optional<bool> cache_enabled = std::nullopt)
      : AutocastGuard(device, dtype.value_or(at::autocast::get_autocast_dtype(device.type())), enabled, cache_enabled) {
  }
  /// The same for a device by name: "cuda" or "cpu".
  [[nodiscard]] explicit autocast(const std::string& device,
                                  std::optional<c10::ScalarType> dtype = std::nullopt,
                                  bool enabled = true,
                                  std::optional<bool> cache_enabled = std::nullopt)
      : autocast(c10::Device(device), dtype, enabled, cache_enabled) {}
};

/// The options of mezzo::GradScaler.
using GradScalerOptions = mezzo::GradScalerOptions;

/// A mezzo::GradScaler with the arguments of Python's `torch.amp.GradScaler`.
class GradScaler : public mezzo::GradScaler {
 public:
  /// @throws c10::ValueError  for an option out of its range
  explicit GradScaler(GradScalerOptions options = {}) : mezzo::GradScaler(std::move(options)) {}

  /// The arguments are in Python's order. The scale lives on the device of the losses; `device` is
  /// ignored.
  explicit GradScaler(c10::Device /*device*/,
                      double init_scale = 65536.0,
                      double growth_factor = 2.0,
                      double backoff_factor = 0.5,
                      int64_t growth_interval = 2000,
                      bool enabled = true)
      : mezzo::GradScaler(GradScalerOptions()
                              .init_scale(init_scale)
                              .growth_factor(growth_factor)
                              .backoff_factor(backoff_factor)
                              .growth_interval(growth_interval)
                              .enabled(enabled)) {}

  /// The same for a device by name.
  explicit GradScaler(const std::string& device,
                      double init_scale = 65536.0,
                      double growth_factor = 2.0,
                      double backoff_factor = 0.5,
                      int64_t growth_interval = 2000,
                      bool enabled = true)
      : GradScaler(c10::Device(device), init_scale, growth_factor, backoff_factor, growth_interval, enabled) {}

  /// `GradScaler(use_amp)`: a single bool enables or disables the scaler.
  template <std::same_as<bool> Bool>
  explicit GradScaler(Bool enabled) : GradScaler(GradScalerOptions().enabled(enabled)) {}
};

using mezzo::custom_bwd;
using mezzo::custom_fwd;

}  // namespace torch::amp

namespace torch::cuda::amp {

/// Autocast on CUDA, as Python's deprecated `torch.cuda.amp.autocast`.
class autocast : public torch::amp::autocast {
 public:
  /// The arguments are in Python's order.
  [[nodiscard]] explicit autocast(bool enabled = true,
                                  c10::ScalarType dtype = at::kHalf,
                                  std::optional<bool> cache_enabled = std::nullopt)
      : torch::amp::autocast(at::kCUDA, dtype, enabled, cache_enabled) {}
};

/// A mezzo::GradScaler, as Python's deprecated `torch.cuda.amp.GradScaler`.
class GradScaler : public torch::amp::GradScaler {
 public:
  /// @throws c10::ValueError  for an option out of its range
  explicit GradScaler(torch::amp::GradScalerOptions options) : torch::amp::GradScaler(std::move(options)) {}

  /// The arguments are in Python's order.
  explicit GradScaler(double init_scale = 65536.0,
                      double growth_factor = 2.0,
                      double backoff_factor = 0.5,
                      int64_t growth_interval = 2000,
                      bool enabled = true)
      : torch::amp::GradScaler(at::kCUDA, init_scale, growth_factor, backoff_factor, growth_interval, enabled) {}

  /// `GradScaler(use_amp)`: a single bool enables or disables the scaler.
  template <std::same_as<bool> Bool>
  explicit GradScaler(Bool enabled) : torch::amp::GradScaler(enabled) {}
};

using mezzo::custom_bwd;
using mezzo::custom_fwd;

}  // namespace torch::cuda::amp
