#pragma once

#include "mezzo/cpp20.h"

#include <memory>

namespace mezzo {

/// While it lives, heavy ops on float16 and bfloat16 tensors run at float32 speed on a CPU without
/// instructions for them, where LibTorch takes up to 100 times as long: to test a half-precision
/// recipe without a GPU. See docs/guide.md, "float16 on a CPU".
///
/// These ops compute in float32 and round each result once to the arguments' dtype, forward and
/// backward, twice differentiable as before:
/// - mm, addmm, bmm, baddbmm, addbmm and _addmm_activation, in-place and `out=` forms included; so
///   also linear, matmul, einsum, RNN and GRU layers, and the cells of all RNNs;
/// - the LSTM layer, which a CPU's autocast gives to oneDNN whole (mkldnn_rnn_layer); in float16 on
///   every processor, because oneDNN cannot train in it. Run its backward while the object lives;
/// - convolutions of 1 to 3 dimensions: strided, padded, dilated, grouped or transposed;
/// - scaled_dot_product_attention.
///
/// Process-wide; construct and destroy it while no other thread computes. The objects may nest.
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
