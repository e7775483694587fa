#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/chunks.h"
#include "kernels/scaling_elements.h"

namespace mezzo::kernels::MEZZO_CUDA {

/// The sum of squares of `kCount` values, computed in float32: consumer GPUs do 64 float32 operations in the time of
/// one in double.
///
/// A power of two scales the largest magnitude to [1, 4), so that no square overflows. A square that underflows is
/// below 2^-126 of the largest. The rounding errors of products (`fmaf`) and of sums (two-sum) are added in float32,
/// too. Of the exact sum S, these errors are at most (kCount + 1) * 2^-24 * S, and adding them rounds by 2^-24 of them
/// each. So the result is within (kCount + 1)^2 * 2^-48 * S: 1.1e-12 * S for 16 values. inf gives inf, NaN gives NaN.
template <int kCount>
MEZZO_DEVICE double sum_of_squares(const float (&values)[kCount]) {
  uint32_t largest = 0;  // the bits of magnitudes have the order of the numbers
  for (const float value : values) {
    const uint32_t magnitude = bits_of(value) & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  const uint32_t exponent = largest >> 23, clamped = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
  const float up = float_of((254 - clamped) << 23), down = float_of(clamped << 23);  // 2^(127 - clamped) and 1 / up
  float sum = 0, errors = 0;
  for (const float value : values) {
    const float scaled = value * up, square = scaled * scaled;
    const float total = sum + square, added = total - sum;
    errors += ::fmaf(scaled, scaled, -square) + ((sum - (total - added)) + (square - added));
    sum = total;
  }
  const auto exact = static_cast<double>(sum) + static_cast<double>(is_finite(errors) ? errors : 0.0f);
  return exact * static_cast<double>(down) * static_cast<double>(down);
}

/// Adds the squares of a thread's part of `chunk` to `sums`, always in the same order.
/// @param load  called with (first, fours): writes four values for each of `sums`, 0 behind the end
template <int kSums, class Load>
MEZZO_DEVICE void add_squares(const Block& block, const Chunk& chunk, double (&sums)[kSums], const Load& load) {
  constexpr int kTile = 16;
  for (int64_t tile = chunk.begin + 4 * block.thread(); tile < chunk.end; tile += kTile * block.threads()) {
    float values[kSums][kTile] = {};
    MEZZO_UNROLLED
    for (int place = 0; place < kTile; place += 4) {
      const int64_t first = tile + place * block.threads();
      if (first < chunk.end) {
        Four fours[kSums];
        load(first, fours);
        for (int i = 0; i < 4 * kSums; ++i) {
          values[i / 4][place + i % 4] = fours[i / 4].at[i % 4];
        }
      }
    }
    for (int i = 0; i < kSums; ++i) {
      sums[i] += sum_of_squares(values[i]);
    }
  }
}

}  // namespace mezzo::kernels::MEZZO_CUDA
