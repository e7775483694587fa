#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

#include "kernels/random_key.h"

/// Runs of numbers between float32 and the half types, with vector instructions where the machine has them. Rounding is
/// to nearest even, as c10's; NaN stays NaN.
namespace mezzo::kernels::cpu {

void to_float(const at::BFloat16* in, float* out, int64_t count);
void to_float(const at::Half* in, float* out, int64_t count);
void from_float(const float* in, at::BFloat16* out, int64_t count);
void from_float(const float* in, at::Half* out, int64_t count);

/// reference::round_stochastically for the elements `first` ... `first + count - 1`; `first` is a multiple of 128.
void round_stochastically(const float* in, at::BFloat16* out, int64_t first, int64_t count, const RandomKey& key);

}  // namespace mezzo::kernels::cpu
