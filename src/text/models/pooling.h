#pragma once

#include <ATen/core/Tensor.h>

#include "encoder/sequence_layout.h"

namespace mezzo::text {

/// The mean of each sequence's rows, padding left out. Of the same numbers in any batch: a sequence's
/// rows are added in their order.
/// @param rows  [T, H]
/// @param layout  known to the CPU
/// @return [B, H] float32, or float64 for such rows
at::Tensor mean_of_sequences(const at::Tensor& rows, const encoder::SequenceLayout& layout);

}  // namespace mezzo::text
