#pragma once

#include <memory>

namespace mezzo {

/// Makes the heavy ops on float16 and bfloat16 tensors fast on a CPU without instructions for them,
/// for as long as it lives, so that a half-precision recipe can be tested without a GPU. LibTorch
/// runs them in plain loops, up to 100 times slower than in float32; now these ops convert their
/// arguments to float32, compute there, and round each result once to the arguments' dtype, forward
/// and backward:
/// - mm, addmm, bmm, baddbmm, addbmm and _addmm_activation, in-place and `out=` forms included; so
///   also linear, matmul, einsum and the RNN cells;
/// - convolutions of 1 to 3 dimensions: strided, padded, dilated, grouped or transposed;
/// - scaled_dot_product_attention.
///
/// What could be differentiated twice still can. Rounding is that of a half-precision kernel with a
/// float32 accumulator, or better, and results overflow where the dtype does. The float32 copies of
/// an op's arguments live only while it runs. Left to LibTorch: float16 on processors with
/// AVX512-FP16, bfloat16 on those with AVX512-BF16, both on other architectures than x86-64, and
/// matrix-vector products, which wait for memory anyway.
///
/// Process-wide; construct and destroy it while no other thread computes. The objects may nest.
/// Autocast, other dtypes and other devices are not touched.
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
