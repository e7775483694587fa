#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "mezzo/graph/graphed_step.h"
#include "text/data/batch_kinds.h"
#include "text/train/gradient_accumulation.h"
#include "text/train/run_plan.h"
#include "text/train/run_setup.h"

namespace mezzo::text {

/// Whether steps on this device can be recorded: never with LoRA's dropout.
bool can_record_steps(const TrainConfig& config, const c10::Device& device);

/// Training steps on a device that has graphs, recorded once for each kind of batch and replayed. One launch replaces
/// thousands. Rows are rounded up with filler, so that there are few kinds. Only the device knows the texts' lengths. A
/// replayed step is bit-identical to one that was not recorded. Each rank has separate kinds: one may record a step
/// while another replays it.
class RecordedSteps {
 public:
  /// Computes a step of batches on the device; returns the results to read there.
  using Compute = std::function<at::Tensor(const StepBatches& batches)>;

  /// @param setup  must outlive this
  /// @param plan  whose first steps say which kinds of batches there are
  /// @param compute  what GraphedStep can record
  RecordedSteps(const TrainConfig& config, const RunSetup& setup, RunPlan plan, Compute compute);

  /// Whether the step can be recorded. It cannot if the model needs to know the texts' lengths. Of device and batches
  /// alone, so that a resumed run decides as the first one did.
  bool take(const StepBatches& batches) const;

  /// One step. Waits for the device only to record, or if `compute` does.
  /// @param batches  on the CPU; `take` has them
  /// @param eagerly  launches each kernel, if the CPU must observe the step
  /// @return what `compute` did; the next call overwrites it
  at::Tensor run(const StepBatches& batches, bool eagerly);

  /// How often a graph was used.
  const GraphedStepCounts& counts() const { return step_.counts(); }

 private:
  std::vector<at::Tensor> pack(const StepBatches& batches);
  StepBatches unpack(const std::vector<at::Tensor>& tensors) const;
  int64_t sequences_of(const StepBatches& batches, const PackedBatch& rows) const;
  BatchSize kind_of(const StepBatches& batches) const;

  const RunSetup& setup_;
  const Compute compute_;
  bool is_possible_;
  const BatchKinds kinds_;
  at::Tensor step_offset_, num_targets_;  // on the device
  StepBatches kind_;                      // of the call at hand: what its tensors do not hold
  GraphedStep step_;
};

}  // namespace mezzo::text
