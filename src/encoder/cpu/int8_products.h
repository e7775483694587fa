#pragma once

#include <span>

#include "encoder/cpu/product_sum.h"

namespace mezzo::encoder::cpu {

/// Whether the term of such a sum is rows times an int8 weight, transposed.
bool is_int8(const ProductSum& sum);

/// Bit-identical to reference::int8_product before `output` is rounded, for any number of threads. Rows of several
/// sums' same left side are made integers once.
/// @param sums  of one term each, not added to their outputs
void compute_int8(std::span<const ProductSum> sums);

/// The same int8 weight, with the order in memory that products read kept behind it. Products with any other int8
/// weight make that order each time. Needs has_int8_products().
at::Tensor with_int8_panels(const at::Tensor& weight);

}  // namespace mezzo::encoder::cpu
