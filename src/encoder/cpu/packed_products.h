#pragma once

#include <span>

#include "encoder/cpu/product_sum.h"

namespace mezzo::encoder::cpu {

/// Whether LibTorch's products of this dtype are the fastest, as MKL's and oneDNN's are on processors of their maker
/// that have instructions for it.
bool is_fast_in_libtorch(at::ScalarType dtype);

/// Whether `compute_packed` takes it and LibTorch's products are the slower ones.
bool can_be_packed(const ProductSum& sum);

/// With mezzo's matrix products. The right factor is rearranged once for all threads, while LibTorch rearranges it for
/// each. Threads end together, as tasks get smaller towards the end. Results do not depend on the number of threads; a
/// sum is rounded once.
void compute_packed(std::span<const ProductSum> sums);

}  // namespace mezzo::encoder::cpu
