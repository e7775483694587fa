#pragma once

#include <optional>
#include <vector>

#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/overflow_report.h"
#include "text/run/run_keeper.h"
#include "text/train/diagnosis.h"
#include "text/train/gradient_accumulation.h"

namespace mezzo::text {

/// Finds out why gradients of a step are inf, NaN or 0, by taking its micro-batches
/// again: with other loss scales, or op by op. Changes no number of the run. Every rank
/// must make the same calls.
class StepDiagnosis {
 public:
  /// All must outlive this.
  StepDiagnosis(const TrainConfig& config,
                const RunSetup& setup,
                const Ranks& ranks,
                GradientAccumulation& accumulation,
                TrainingModel& model,
                RunKeeper& keeper);

  /// Called before a step is taken. Waits for the device, so only where `--diagnose` or
  /// `is_last_chance` asks for it.
  /// @param loss_scale  that the gradients are multiplied by.
  void look_at_gradients(double loss_scale, bool is_last_chance);

  /// With `--diagnose`, after the step was taken: tells what was found. Collective.
  /// @param is_new  whether the step before was not skipped.
  void diagnose(const StepRecord& record, const std::vector<MicroBatch>& micro_batches, bool is_new);

  /// Whether the loss, its scale or neither keeps the gradients of a skipped step from
  /// being finite. Collective.
  DiagnoseRecord find_cause(const StepRecord& record, const std::vector<MicroBatch>& micro_batches);

  /// Of the gradients that look_at_gradients() saw.
  const std::optional<OverflowReport>& overflow() const { return overflow_; }

  /// How gradients are spread, since the last time; nullopt for none.
  std::optional<DiagnoseRecord> take_gradients(int64_t step, double loss_scale) {
    return diagnosis_.take_gradients(step, loss_scale);
  }

 private:
  std::optional<NonFiniteOp> retrace(const std::vector<MicroBatch>& micro_batches, const StepRecord& record);
  std::vector<GradientExponents> gradients_at(double scale,
                                              const std::vector<MicroBatch>& micro_batches,
                                              const StepRecord& record);
  void look_for_underflow(const StepRecord& record, const std::vector<MicroBatch>& micro_batches);
  void tell_of_skip(const StepRecord& record, const std::vector<MicroBatch>& micro_batches, bool is_new);

  const TrainConfig& config_;
  const bool has_scale_;
  const Ranks& ranks_;
  GradientAccumulation& accumulation_;
  TrainingModel& model_;
  RunKeeper& keeper_;
  Diagnosis diagnosis_;
  std::optional<OverflowReport> overflow_;  // of the last step's gradients, where they were looked at
};

}  // namespace mezzo::text
