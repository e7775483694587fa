#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "encoder/sequence_layout.h"

namespace mezzo::text {

/// The mean of each sequence's rows, padding left out. Of the same numbers in any batch: a sequence's
/// rows are added in their order.
/// @param rows  [T, H]
/// @return [B, H] float32, or float64 for such rows; 0 for a sequence without tokens
at::Tensor mean_of_sequences(const at::Tensor& rows, const encoder::SequenceLayout& layout);

/// Pools the windows of each text, in float32; returns `outputs` unchanged if each text is one window.
/// @param outputs  [B, C]; more rows than there are windows are left out
/// @param window_counts  of PackedBatch, on the device of `outputs`
/// @param how  "mean" or "max"
/// @return [texts, C]
at::Tensor pool_windows(const at::Tensor& outputs, const at::Tensor& window_counts, const std::string& how);

}  // namespace mezzo::text
