#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/amp/overflow_report.h"
#include "mezzo/amp/scale_advice.h"
#include "mezzo/text/records/run_records.h"

namespace mezzo::text {

/// What `mezzo train --diagnose` gathers about the gradients of a run. Reads them only.
class Diagnosis {
 public:
  /// The part of the model that a parameter is counted with: "layer 3".
  using PartOf = std::function<std::string(const std::string& parameter)>;
  explicit Diagnosis(PartOf part_of) : part_of_(std::move(part_of)) {}

  /// Counts the optimizer's gradients, which are still multiplied by `scale`, by
  /// part of the model. Syncs.
  std::vector<GradientExponents> count(torch::optim::Optimizer& optimizer, double scale) const;

  /// Called once a step, before it is taken, on gradients that are still
  /// multiplied by `scale`. Syncs.
  void look_at(torch::optim::Optimizer& optimizer, double scale, const OverflowReport& overflow);

  /// Where the step's gradients were counted and may be 0 because `scale` is too small for float16:
  /// a scale at which to count them again.
  std::optional<double> better_scale(double scale) const;

  /// Puts `true_ones` in the place of the step's gradients as they were counted; of the same step
  /// both, `at_scale` with the scale in use and `true_ones` with a better one.
  void found_underflow(const std::vector<GradientExponents>& at_scale, std::vector<GradientExponents> true_ones);

  /// How the gradients so far are spread; nullopt where none were counted since the last time.
  std::optional<DiagnoseRecord> take_gradients(int64_t step, double loss_scale);

  /// Whether enough were counted to tell for the first time; the end of the run is the second.
  bool gradients_are_due() const { return taken_ == 0 && counted_ >= kFirstSteps; }

  /// The step is over: its gradients, if they were counted, join those of earlier ones.
  void end_step();

 private:
  static constexpr int64_t kFirstSteps = 3;
  static constexpr int64_t kCountEvery = 50;

  PartOf part_of_;
  int64_t steps_ = 0;    // looked at
  int64_t counted_ = 0;  // of them, those whose gradients were counted: the first without overflow, then some
  int64_t taken_ = 0;    // of them, those that take_gradients() has told of
  std::vector<GradientExponents> exponents_;
  std::vector<GradientExponents> latest_;  // of this step; empty where they were not counted
};

bool are_finite(const std::vector<GradientExponents>& groups);

/// Why gradients of a skipped step were inf or NaN, and what to do.
/// @param has_scale  fp16.
/// @param is_static  the scale never changes.
/// @param unscaled  the gradients of the step without a scale, where all of
///   them are finite; else empty.
DiagnoseRecord describe_cause(const StepRecord& record,
                              bool has_scale,
                              bool is_static,
                              const std::vector<GradientExponents>& unscaled);

DiagnoseRecord describe(const OverflowReport& overflow, int64_t step, double loss_scale);

}  // namespace mezzo::text
