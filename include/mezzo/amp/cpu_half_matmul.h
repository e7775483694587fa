#pragma once

#include <memory>

namespace mezzo {

/// Makes matrix products of float16 and bfloat16 tensors fast on a CPU that
/// has no instructions for them, for as long as it lives.
///
/// LibTorch multiplies such tensors in a plain loop where oneDNN has no kernel
/// for the processor: 50 to 100 times slower than float32. While this object
/// lives, mm, addmm, bmm and baddbmm (and so linear, matmul and einsum, and
/// their gradients) convert to float32, multiply there, and round the result
/// once to the inputs' dtype: as exact as a half-precision product with
/// float32 accumulation. bfloat16 is left to oneDNN on processors with
/// AVX512-BF16.
///
/// Process-wide; construct and destroy it while no other thread multiplies.
/// The objects may nest. Autocast, autograd and other dtypes and devices are
/// not touched.
class CpuHalfMatmul {
 public:
  CpuHalfMatmul();
  ~CpuHalfMatmul();
  CpuHalfMatmul(const CpuHalfMatmul&) = delete;
  CpuHalfMatmul& operator=(const CpuHalfMatmul&) = delete;

 private:
  struct Registration;
  std::shared_ptr<Registration> registration_;
};

}  // namespace mezzo
