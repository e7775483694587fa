#pragma once

#include <functional>
#include <vector>

#include "text/train/run_plan.h"
#include "text/train/run_setup.h"
#include "text/train/step_clock.h"
#include "text/train/training_model.h"

namespace mezzo::text {

/// A step's micro-batches of this rank as rows, on the CPU or the model's device.
struct StepBatches {
  struct Micro {
    PackedBatch rows;
    uint32_t number;   ///< keys dropout
    bool is_stand_in;  ///< not to count
  };
  std::vector<Micro> micro;
  at::Tensor num_targets;  ///< float32, 0-dim: how many all ranks have in the step
  at::Tensor step_offset;  ///< added to every number, as in DropoutSeed

  /// That count.
  int64_t tokens() const;
};

/// Forward and backward of a step's micro-batches. Every rank must make the same calls.
class GradientAccumulation {
 public:
  /// All must outlive this.
  GradientAccumulation(const TrainConfig& config, const RunSetup& setup, const RunPlan& plan, TrainingModel& model)
      : config_(config), setup_(setup), plan_(plan), model_(model) {}

  /// On the CPU.
  /// @param step  that they are of, from 0
  StepBatches collate(const std::vector<MicroBatch>& micro_batches, int64_t step) const;

  /// Adds the gradients of each micro-batch's share of the loss, as `scale` returns it.
  /// @param clock  enters forward and backward; null: nobody asks
  /// @return the sum of this rank's shares; over all ranks, that is the mean loss.
  at::Tensor run(const StepBatches& batches,
                 const std::function<at::Tensor(const at::Tensor&)>& scale,
                 StepClock* clock = nullptr);

 private:
  at::Tensor summed_loss(const PackedBatch& batch, const DropoutSeed& random);

  const TrainConfig& config_;
  const RunSetup& setup_;
  const RunPlan& plan_;
  TrainingModel& model_;
};

}  // namespace mezzo::text
