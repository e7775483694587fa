#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <map>
#include <string>

#include "kernels/scaling_kernels.h"

namespace mezzo {

using kernels::LossScaleRules;

/// The loss scale: torch.amp.GradScaler's state machine, with mezzo's hysteresis and bounds. Its
/// tensors lie on one device, are made once and changed in place there, so that a captured graph
/// may hold them. Only what says so syncs.
class LossScale {
 public:
  using StateDict = std::map<std::string, c10::Scalar>;

  /// @throws c10::ValueError  for a rule out of its range.
  explicit LossScale(const LossScaleRules& rules);

  /// Makes the tensors; until then there are but the rules.
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
  /// Ends an iteration with the given scale, clamped to the bounds.
  void set(double scale);
  void set(const at::Tensor& scale);

  /// Iterations in a row that were skipped, if the current one ends with `found_inf`; only if they are counted. Syncs.
  int64_t skips_in_a_row(const at::Tensor& found_inf) const;

  const LossScaleRules& rules() const { return rules_; }
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
  int64_t count(kernels::LossScaleCount which) const;
  void write_initial_state();

  LossScaleRules rules_;
  int64_t init_growth_tracker_ = 0, init_hysteresis_tracker_;
  at::Tensor scale_, counts_;  // as LossScaleTensors
};

}  // namespace mezzo
