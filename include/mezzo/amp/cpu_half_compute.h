#pragma once

#include "mezzo/cpp20.h"

#include <memory>

namespace mezzo {

/// Speeds up heavy ops on float16 and bfloat16 tensors on a CPU without instructions for them,
/// during its lifetime. They run at float32 speed; LibTorch takes up to 100 times longer. Use it to
/// test a half-precision recipe without a GPU. See docs/guide.md, "float16 on a CPU".
///
/// These ops compute in float32 and round each result once to the dtype of the arguments, forward
/// and backward. They stay twice differentiable.
/// * `mm`, `addmm`, `bmm`, `baddbmm`, `addbmm` and `_addmm_activation`, including in-place and
///   `out=` forms. Linear, matmul, einsum, RNN and GRU layers, and all RNN cells use them.
/// * `mkldnn_rnn_layer`, the LSTM layer that autocast on a CPU passes to oneDNN. In float16 it is
///   replaced on every processor, because oneDNN cannot train in it. Run its backward while the
///   object lives.
/// * `convolution` of 1 to 3 dimensions: strided, padded, dilated, grouped or transposed.
/// * `scaled_dot_product_attention`.
///
/// Process-wide: construct and destroy it while no other thread computes. The objects may nest.
/// Autocast, other dtypes and other devices are not touched.
class CpuHalfCompute {
 public:
  [[nodiscard]] CpuHalfCompute();
  ~CpuHalfCompute();
  CpuHalfCompute(const CpuHalfCompute&) = delete;
  CpuHalfCompute& operator=(const CpuHalfCompute&) = delete;

 private:
  struct Registration;
  std::shared_ptr<Registration> registration_;
};

}  // namespace mezzo
