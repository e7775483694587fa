#pragma once

#include <cstdint>

#include "encoder/cpu/simd/kernels.h"

namespace mezzo::encoder::cpu {

/// The rate that matrix products could reach if they read no memory: that of their instruction on registers.
class PeakRate {
 public:
  /// @param loop  of `simd_kernels().peak`; its `run` may be null
  explicit PeakRate(const PeakLoop& loop);

  /// Operations per second of all LibTorch's threads together; a multiplication and an addition are two. 0 without an
  /// instruction. Takes some 10 ms. Other programs make the rate lower, so the highest of several is the best.
  double measure() const;

 private:
  PeakLoop loop_;
  int64_t rounds_ = 1 << 12;
};

}  // namespace mezzo::encoder::cpu
