#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/optimizer_kernels.h"

namespace mezzo::detail {

/// The updates by AdamW of an embedding's rows, of which those without a gradient wait. Such an update needs only the
/// constants of its step. A row gets all missed updates in one pass over its memory, in the order of the steps. The
/// results are bit-identical to updates of the whole table.
class DeferredRows {
 public:
  /// @param table  [R, C], float32, contiguous, on the CPU
  explicit DeferredRows(at::Tensor table);

  const at::Tensor& table() const { return table_; }

  /// Brings the rows `ids` up to date. The next updates take their gradients, until `zero_gradient`.
  /// @throws c10::IndexError  for an id out of range
  void read(const at::Tensor& ids);

  /// Brings all rows up to date.
  void catch_up();

  /// kernels::adam; of the table, only the rows that were read.
  void update(kernels::ParameterUpdates updates, const kernels::AdamSettings& settings, const GradientFactors& factors);

  /// Sets the gradients of the rows that were read to 0, or of all without an update since the last call. Clipping by a
  /// norm of NaN makes those NaN. The gradient stays, so that backward adds to it.
  void zero_gradient();

 private:
  void catch_up(const std::vector<int64_t>& behind);

  at::Tensor table_;
  std::vector<at::Tensor> moments_;            // exp_avg and exp_avg_sq, at the last step
  std::vector<kernels::AdamConstants> steps_;  // since all rows were up to date
  std::vector<size_t> done_;                   // of steps_, by row
  std::vector<int64_t> read_;                  // rows, each once
  std::vector<bool> is_read_;                  // by row
  bool is_updated_ = false;                    // since zero_gradient()
};

}  // namespace mezzo::detail
