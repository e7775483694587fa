#pragma once

#include <optional>
#include <vector>

#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/overflow_report.h"
#include "mezzo/amp/scale_advice.h"
#include "text/train/gradient_accumulation.h"
#include "text/train/training_run.h"

namespace mezzo::text {

/// Finds out why gradients of a step are inf, NaN or 0, by taking its micro-batches again: with other loss scales, or
/// op by op. Counts the exponents of gradients. Changes no number of the run. Every rank must make the same calls.
class StepDiagnosis {
 public:
  /// All must outlive this.
  StepDiagnosis(TrainingRun& run, GradientAccumulation& accumulation, TrainingModel& model)
      : run_(run), accumulation_(accumulation), model_(model) {}

  /// Called before a step is taken. Waits for the device, so only with `--diagnose` or at the last chance.
  /// @param loss_scale  that the gradients are multiplied by
  /// @param is_last_chance  whether the run ends if this step is skipped
  void look_at_gradients(double loss_scale, bool is_last_chance);

  /// With `--diagnose`, after the step was taken: records the findings. Collective.
  /// @param is_new  whether the step before was not skipped
  void diagnose(const StepRecord& record, const std::vector<MicroBatch>& micro_batches, bool is_new);

  /// Whether the loss, its scale or neither keeps the gradients of a skipped step from being finite. Collective.
  DiagnoseRecord find_cause(const StepRecord& record, const std::vector<MicroBatch>& micro_batches);

  /// Of the gradients that look_at_gradients() saw.
  const std::optional<OverflowReport>& overflow() const { return overflow_; }

  /// Exponents of the gradients so far; nullopt if none were counted since the last call.
  std::optional<DiagnoseRecord> take_gradients(int64_t step, double loss_scale);

 private:
  bool has_scale() const { return run_.setup.precision == Precision::kFloat16; }
  std::vector<GradientExponents> count(double scale) const;
  std::optional<double> better_scale(double scale) const;
  std::optional<NonFiniteOp> retrace(const std::vector<MicroBatch>& micro_batches, const StepRecord& record);
  std::vector<GradientExponents> gradients_at(double scale,
                                              const std::vector<MicroBatch>& micro_batches,
                                              const StepRecord& record);
  void look_for_underflow(const StepRecord& record, const std::vector<MicroBatch>& micro_batches);
  void tell_of_skip(const StepRecord& record, const std::vector<MicroBatch>& micro_batches, bool is_new);
  void add_latest();

  TrainingRun& run_;
  GradientAccumulation& accumulation_;
  TrainingModel& model_;
  std::optional<OverflowReport> overflow_;  // of the last step's gradients, if they were looked at
  int64_t steps_ = 0;                       // looked at
  int64_t counted_ = 0;                     // of `steps_`, those whose gradients were counted
  int64_t taken_ = 0;                       // of `counted_`, steps that take_gradients() has returned
  std::vector<GradientExponents> exponents_;
  std::vector<GradientExponents> latest_;  // of this step; empty if they were not counted
};

}  // namespace mezzo::text
