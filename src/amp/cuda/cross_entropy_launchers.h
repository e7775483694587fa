#pragma once

#include "kernels/cuda/arguments.h"

namespace mezzo::MEZZO_CUDA {

using namespace kernels::MEZZO_CUDA;  // the thin layer, elements

struct CrossEntropyArguments {
  Span logits;
  const int64_t* targets;
  int64_t ignored;           ///< the target of rows that count nothing
  float *largest, *log_sum;  ///< [rows]: as CrossEntropy has them
  float* losses;             ///< forward: [rows]
  float* total;              ///< forward: of the losses, their sum, or their mean where `count`; nullptr leaves it out
  float* count;              ///< of rows that count: set by forward, read by backward; nullptr leaves it out
  const float* grad;         ///< backward: of the total, or of each row's loss
  bool grad_is_of_rows;
  Span grad_logits;  ///< backward
  int64_t rows, columns;
};

/// Queued on a stream of the current device. There is at least one row.
void cross_entropy(const CrossEntropyArguments& arguments, Stream stream);
void cross_entropy_backward(const CrossEntropyArguments& arguments, Stream stream);

}  // namespace mezzo::MEZZO_CUDA
