#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "encoder/cpu/products.h"

namespace mezzo::encoder {

/// Matrix products that do not wait for each other, of tensors of one device, of any dtype, unseen by autograd. On a
/// CPU they are computed together (cpu::Products); elsewhere each is queued on the device at once, or beside. Sums and
/// products may be float32 if a and b are not; they are never rounded to the dtype of a and b.
class Products {
 public:
  /// The product a b, to be read after `compute`. [M, K] times [K, N]; of three dimensions, here and
  /// below, a product for each entry of the first. On a CPU, b may be an int8 weight transposed (int8_weights.h).
  /// @param dtype  of the product: that of a and b, or float32; nullopt: that of a and b
  at::Tensor add(const at::Tensor& a, const at::Tensor& b, std::optional<at::ScalarType> dtype = {});

  /// output = a b in `compute`; dtypes as above.
  void assign(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b);

  /// The same two for what nothing waits for: on an accelerator they are computed in a SideStream.
  at::Tensor add_aside(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype);
  void assign_aside(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b);

  /// `compute` adds: total += a b, in the order of the calls; `total` may be float32 if a and b are not. To a batch
  /// once.
  void add_to(const at::Tensor& total, const at::Tensor& a, const at::Tensor& b);

  /// Once, after all of them.
  void compute();

 private:
  cpu::Products on_cpu_;
};

}  // namespace mezzo::encoder
