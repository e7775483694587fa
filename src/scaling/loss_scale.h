#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <map>
#include <string>

#include "kernels/scaling_kernels.h"

namespace mezzo {

/// As GradScalerOptions.
struct LossScaleSettings {
  double init_scale, growth_factor, backoff_factor;
  int64_t growth_interval;
  double min_scale, max_scale;
  int64_t hysteresis;
  bool is_static, reproduce_pytorch;
  bool counts_skips_in_a_row;  ///< for `skips_in_a_row`
};

/// The loss scale: torch.amp.GradScaler's state machine, with mezzo's hysteresis and bounds. Its
/// scalars lie on one device, are made once and changed in place there, so that a captured graph
/// may hold them. Only what says so syncs.
class LossScale {
 public:
  using StateDict = std::map<std::string, c10::Scalar>;

  /// @throws c10::ValueError  for a setting out of its range.
  explicit LossScale(const LossScaleSettings& settings);

  /// The scalars; until then there are but the settings.
  void create(c10::Device device);
  bool exists() const { return scale_.defined(); }

  /// float32, 0-dim; undefined before `create`.
  const at::Tensor& tensor() const { return scale_; }
  /// Syncs, as the next two.
  double value() const;
  int64_t growth_tracker() const;
  int64_t skipped() const;

  /// Ends an iteration: 1 in `found_inf` (float32, 0-dim) backs off, 0 counts towards growth.
  void update(const at::Tensor& found_inf);
  /// Ends an iteration with a scale of one's own, clamped to the bounds.
  void set(double scale);
  void set(const at::Tensor& scale);

  /// Iterations in a row that were skipped, if the one at hand ends with `found_inf`;
  /// where they are counted. Syncs.
  int64_t skips_in_a_row(const at::Tensor& found_inf) const;

  const LossScaleSettings& settings() const { return settings_; }
  void set_growth_factor(double growth_factor);
  void set_backoff_factor(double backoff_factor);
  void set_growth_interval(int64_t growth_interval);

  /// Syncs.
  StateDict state_dict() const;
  /// @throws c10::ValueError  for a missing entry or one out of its range;
  ///   nothing has changed then.
  void load_state_dict(const StateDict& state_dict);

  /// `value`, if the scale may be that. @throws c10::ValueError  naming `what`.
  double checked(const char* what, double value) const;

 private:
  kernels::LossScaleRules rules() const;

  LossScaleSettings settings_;
  int64_t init_growth_tracker_ = 0, init_hysteresis_tracker_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;      // int32: steps without overflow since the scale changed
  at::Tensor hysteresis_tracker_;  // int32: overflows still to come before the scale backs off
  at::Tensor skips_in_a_row_;      // int32, up to the last update
  at::Tensor skipped_;             // int64, since `create`; MPS has no float64
};

}  // namespace mezzo
