#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace mezzo::kernels::cpu {

/// Matrix products that do not wait for each other, computed together: every thread takes whole products, or pieces of
/// rows or columns, so that threads meet once. A library that shares out each product by itself makes them meet in
/// each; on 2 threads of an AMD EPYC, LibTorch's took 4 to 16 percent longer over the products of BERT's layers.
///
/// Results depend on the shapes and the number of threads alone. Tensors of any dtype; autograd does not see them.
class Products {
 public:
  /// The product a b, to be read after `compute`. [M, K] times [K, N].
  at::Tensor add(const at::Tensor& a, const at::Tensor& b);

  /// total += a b in `compute`, in the order of the calls. A product of another dtype than the total's is rounded to
  /// its own first.
  void add_to(const at::Tensor& total, const at::Tensor& a, const at::Tensor& b);

  /// Once, after all of them.
  void compute();

 private:
  using Term = std::pair<at::Tensor, at::Tensor>;

  /// output = [output +] the sum of the terms.
  struct Sum {
    at::Tensor output;
    std::vector<Term> terms;
    bool adds;
    double operations() const;
    /// Piece `i` of `count`, split along the longer side of the output.
    void compute(int64_t i, int64_t count) const;
  };

  int64_t pieces_of_each(int64_t threads) const;

  std::vector<Sum> sums_;
  std::vector<std::pair<at::Tensor, at::Tensor>> rounded_;  // totals, and what is to be added to them
};

}  // namespace mezzo::kernels::cpu
