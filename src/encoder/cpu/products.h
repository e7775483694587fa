#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "encoder/cpu/product_sum.h"

namespace mezzo::encoder::cpu {

/// Independent matrix products, computed together, so that threads synchronize once instead of in each product. On 2
/// threads of an AMD EPYC, LibTorch's, one by one, took 4 to 16 percent longer over the products of BERT's layers. By
/// `compute_packed` if it is faster, else by LibTorch. With LibTorch every thread takes whole products, or pieces of
/// rows or columns. Then results depend on the number of threads, besides the shapes. Tensors of any dtype; autograd
/// does not see them.
class Products {
 public:
  /// The product a b, to be read after `compute`. [M, K] times [K, N], or times an int8 weight transposed
  /// (int8_weights.h), [K + kInt8ScaleBytes, N].
  /// @param dtype  of the product: that of a and b, or float32; nullopt: that of a and b
  at::Tensor add(const at::Tensor& a, const at::Tensor& b, std::optional<at::ScalarType> dtype = {});

  /// output = a b in `compute`; dtypes as above.
  void assign(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b);

  /// `compute` adds: total += a b, in the order of the calls; `total` may be float32 if a and b are not. A float32
  /// total or product is rounded to float32 alone. A total in half precision is rounded once by `compute_packed`, and
  /// after each product by LibTorch.
  void add_to(const at::Tensor& total, const at::Tensor& a, const at::Tensor& b);

  /// Once, after all of them.
  void compute();

 private:
  std::vector<ProductSum> sums_;
};

}  // namespace mezzo::encoder::cpu
