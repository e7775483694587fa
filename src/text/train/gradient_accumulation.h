#pragma once

#include <functional>
#include <vector>

#include "mezzo/text/records/run_records.h"
#include "text/setup/run_plan.h"
#include "text/setup/run_setup.h"
#include "text/train/training_model.h"

namespace mezzo::text {

/// Forward and backward of a step's micro-batches. Every rank must make the same calls.
class GradientAccumulation {
 public:
  /// All must outlive this.
  GradientAccumulation(const TrainConfig& config, const RunSetup& setup, const RunPlan& plan, TrainingModel& model)
      : config_(config), setup_(setup), plan_(plan), model_(model) {}

  /// Adds the gradients of each micro-batch's share of the loss, as `scale` returns it.
  /// Counts its tokens in `record`.
  /// @return the sum of this rank's shares; over all ranks, that is the mean loss.
  at::Tensor run(const std::vector<MicroBatch>& micro_batches,
                 StepRecord& record,
                 const std::function<at::Tensor(const at::Tensor&)>& scale);

 private:
  at::Tensor summed_loss(const PackedBatch& batch, uint32_t micro_batch);

  const TrainConfig& config_;
  const RunSetup& setup_;
  const RunPlan& plan_;
  TrainingModel& model_;
};

}  // namespace mezzo::text
