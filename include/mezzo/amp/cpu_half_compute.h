#pragma once

#include <memory>

namespace mezzo {

/// Makes the heavy ops on float16 and bfloat16 tensors fast on a CPU that has
/// no instructions for them, for as long as it lives; so that a half-precision
/// recipe can be written, tested and debugged without a GPU.
///
/// LibTorch runs such ops in plain loops where oneDNN has no kernel for the
/// processor, up to 100 times slower than in float32. While this object lives,
/// these convert their arguments to float32, compute there, and round each
/// result once to the arguments' dtype, forward and backward:
/// - mm, addmm, bmm, baddbmm, addbmm and _addmm_activation, with their in-place
///   and `out=` forms; so also linear, matmul, einsum and the RNN cells;
/// - convolutions of 1, 2 and 3 dimensions: strided, padded, dilated, grouped,
///   transposed, with or without bias;
/// - scaled_dot_product_attention.
///
/// What autograd records does not change: whatever could be differentiated
/// twice still can. Rounding is that of a half-precision kernel with a float32
/// accumulator, or better: LibTorch's own round some intermediate sums. Results
/// overflow where the dtype does. The float32 copies of an op's arguments live
/// only while it runs.
///
/// float16 is left to LibTorch on processors with AVX512-FP16, bfloat16 on those
/// with AVX512-BF16, and both on other architectures than x86-64. Matrix-vector
/// products wait for memory, not for arithmetic, and stay LibTorch's too.
///
/// Process-wide; construct and destroy it while no other thread computes. The
/// objects may nest. Autocast, other dtypes and other devices are not touched.
class CpuHalfCompute {
 public:
  CpuHalfCompute();
  ~CpuHalfCompute();
  CpuHalfCompute(const CpuHalfCompute&) = delete;
  CpuHalfCompute& operator=(const CpuHalfCompute&) = delete;

 private:
  struct Registration;
  std::shared_ptr<Registration> registration_;
};

}  // namespace mezzo
