#pragma once

/// Python's spelling of mezzo::AutocastGuard and mezzo::GradScaler, in LibTorch's namespaces:
/// `torch::amp::autocast`, `torch::amp::GradScaler`, `torch::cuda::amp::autocast` and
/// `torch::cuda::amp::GradScaler`. LibTorch declares no such names. Not part of mezzo.h: a later
/// LibTorch may declare them.

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

/// @code
/// torch::amp::autocast autocast(torch::kCUDA, torch::kHalf);
/// torch::amp::autocast autocast("cuda");  // in the device type's own dtype: float16; on the CPU bfloat16
/// @endcode
class autocast : public mezzo::AutocastGuard {
 public:
  /// Python's order of arguments.
  /// @param dtype  nullopt: kHalf for CUDA, kBFloat16 for the CPU, unless Python set another
  [[nodiscard]] explicit autocast(c10::Device device,
                                  std::optional<c10::ScalarType> dtype = std::nullopt,
                                  bool enabled = true,
                                  std::optional<bool> cache_enabled = std::nullopt)
      : AutocastGuard(device, dtype.value_or(at::autocast::get_autocast_dtype(device.type())), enabled, cache_enabled) {
  }
  [[nodiscard]] explicit autocast(const std::string& device,
                                  std::optional<c10::ScalarType> dtype = std::nullopt,
                                  bool enabled = true,
                                  std::optional<bool> cache_enabled = std::nullopt)
      : autocast(c10::Device(device), dtype, enabled, cache_enabled) {}
};

using GradScalerOptions = mezzo::GradScalerOptions;

class GradScaler : public mezzo::GradScaler {
 public:
  explicit GradScaler(GradScalerOptions options = {}) : mezzo::GradScaler(std::move(options)) {}

  /// Python's order of arguments. The scale lives on the device of the losses, whatever `device` is.
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

  explicit GradScaler(const std::string& device,
                      double init_scale = 65536.0,
                      double growth_factor = 2.0,
                      double backoff_factor = 0.5,
                      int64_t growth_interval = 2000,
                      bool enabled = true)
      : GradScaler(c10::Device(device), init_scale, growth_factor, backoff_factor, growth_interval, enabled) {}

  /// `GradScaler(use_amp)`: a lone bool says whether the scaler is enabled.
  template <std::same_as<bool> Bool>
  explicit GradScaler(Bool enabled) : GradScaler(GradScalerOptions().enabled(enabled)) {}
};

using mezzo::custom_bwd;
using mezzo::custom_fwd;

}  // namespace torch::amp

namespace torch::cuda::amp {

class autocast : public torch::amp::autocast {
 public:
  /// Python's order of arguments.
  [[nodiscard]] explicit autocast(bool enabled = true,
                                  c10::ScalarType dtype = at::kHalf,
                                  std::optional<bool> cache_enabled = std::nullopt)
      : torch::amp::autocast(at::kCUDA, dtype, enabled, cache_enabled) {}
};

class GradScaler : public torch::amp::GradScaler {
 public:
  explicit GradScaler(torch::amp::GradScalerOptions options) : torch::amp::GradScaler(std::move(options)) {}

  /// Python's order of arguments.
  explicit GradScaler(double init_scale = 65536.0,
                      double growth_factor = 2.0,
                      double backoff_factor = 0.5,
                      int64_t growth_interval = 2000,
                      bool enabled = true)
      : torch::amp::GradScaler(at::kCUDA, init_scale, growth_factor, backoff_factor, growth_interval, enabled) {}

  /// `GradScaler(use_amp)`: a lone bool says whether the scaler is enabled.
  template <std::same_as<bool> Bool>
  explicit GradScaler(Bool enabled) : torch::amp::GradScaler(enabled) {}
};

using mezzo::custom_bwd;
using mezzo::custom_fwd;

}  // namespace torch::cuda::amp
