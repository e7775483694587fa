#pragma once

#include <ATen/core/Tensor.h>

#include "encoder/dropout_site.h"

namespace mezzo::encoder {

/// The operator mezzo::dropout: `x` with each element zeroed with probability p, the others divided by 1 - p.
/// Differentiable to any order. Element i (row-major) uses word i % 4 of Philox block i / 4 (counter {block low, block
/// high, step, site}, key seed). It is dropped if the word is below p * 2^32. Backward computes the words again instead
/// of storing a mask.
/// @param x  any shape, floating, any device
/// @param site  p in [0, 1); 0 returns `x` itself
/// @return shape, dtype and device of `x`, contiguous
at::Tensor dropout(const at::Tensor& x, const DropoutSite& site);

namespace reference {
/// The step of a site's key, its offset added: 0-dim int64 on `device`.
at::Tensor step_of(const DropoutSite& site, const at::Device& device);
/// The mask in ATen arithmetic, on any device: true where an element is kept.
at::Tensor dropout_keep_mask(at::IntArrayRef sizes, const DropoutSite& site, const at::Device& device);
/// One application of the mask, without autograd.
at::Tensor dropout(const at::Tensor& x, const DropoutSite& site);
/// Rows of `encoder::dropout` of a larger tensor: `x` [R, H], whose row r is its row
/// `row_numbers[r]`. Differentiable.
/// @param row_numbers  [R] int64
at::Tensor dropout_of_rows(const at::Tensor& x, const at::Tensor& row_numbers, const DropoutSite& site);
}  // namespace reference

}  // namespace mezzo::encoder
