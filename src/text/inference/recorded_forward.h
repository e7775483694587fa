#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "mezzo/graph/graphed_step.h"
#include "mezzo/text/data/packed_batch.h"
#include "mezzo/text/models/model_for_task.h"
#include "mezzo/text/models/precision.h"
#include "text/data/batch_kinds.h"

namespace mezzo::text {

/// Forward passes without gradients on a device that has graphs: recorded for each kind of batch that comes up often,
/// and replayed. Rows and sequences are rounded up, so that few kinds come up. Outputs are the same bits whether a
/// graph was replayed or not. Graphs share one pool of memory, as large as the largest batch needs.
///
/// For a model whose weights stay as they are. Not thread-safe, as the model.
class RecordedForward {
 public:
  /// A recording takes as long as some ten passes, so even batches that make graphs drop each other wait seldom.
  /// The texts decide on the kinds of batches, so a warning would have no advice.
  static GraphedStepOptions usual_options() {
    return GraphedStepOptions().warmup_steps(16).max_graphs(64).warn_on_drop(false);
  }

  /// @param model  must outlive this; in eval mode whenever run() is called
  /// @param precision  of the caller's autocast
  RecordedForward(ModelForTask& model, Precision precision, const GraphedStepOptions& options = usual_options());

  /// Whether there are graphs of the model's device.
  static bool is_available(const ModelForTask& model);

  /// If a pass cannot be recorded, for example because memory runs out, a warning says so, and this and later passes
  /// are not recorded.
  /// @param batch  on the CPU
  /// @return of ModelForTask::forward(), on the device; the next call overwrites it
  at::Tensor run(const PackedBatch& batch);

  /// Of texts with at most 512 tokens, and no more than `longest`, the longest of each kind.
  std::vector<int64_t> short_lengths(int64_t longest) const;
  /// After how many batches of a kind there is a graph.
  int64_t passes_to_record() const { return passes_to_record_; }

  const GraphedStepCounts& counts() const { return step_.counts(); }

 private:
  at::Tensor forward(const GraphedStep::Tensors& tensors);
  BatchSize kind_of(const PackedBatch& batch, int64_t sequences) const;

  ModelForTask& model_;
  const at::Device device_;
  const at::ScalarType dtype_;
  const BatchKinds kinds_;
  const int64_t passes_to_record_;
  int64_t longest_ = 0;  // of the call at hand
  bool goes_without_ = false;
  GraphedStep step_;
};

}  // namespace mezzo::text
