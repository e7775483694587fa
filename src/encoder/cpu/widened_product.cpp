#include "encoder/cpu/widened_product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cstdint>

#include "encoder/cpu/packed_products.h"

extern "C" {
[[gnu::weak]] void cblas_gemm_bf16bf16f32(int layout,
                                          int transpose_a,
                                          int transpose_b,
                                          int m,
                                          int n,
                                          int k,
                                          float alpha,
                                          const uint16_t* a,
                                          int stride_a,
                                          const uint16_t* b,
                                          int stride_b,
                                          float beta,
                                          float* c,
                                          int stride_c);
}

namespace mezzo::encoder::cpu {
namespace {

constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;  // of CBLAS

/// Elements from a row to the next; 0 if CBLAS cannot read the matrix row by row.
int64_t row_stride(const at::Tensor& matrix) {
  const int64_t columns = matrix.size(1),
                stride = matrix.size(0) > 1 ? matrix.stride(0) : std::max(columns, int64_t{1});
  return matrix.stride(1) == 1 && stride >= columns ? stride : 0;
}

/// A factor as CBLAS reads it.
struct Factor {
  explicit Factor(const at::Tensor& matrix)
      : transpose(row_stride(matrix) > 0 ? kPlain : kTransposed),
        stride(static_cast<int>(row_stride(transpose == kPlain ? matrix : matrix.t()))),
        values(static_cast<const uint16_t*>(matrix.const_data_ptr())) {}

  int transpose, stride;
  const uint16_t* values;
};

}  // namespace

bool widened_product_of_mkl(at::Tensor& output, const at::Tensor& a, const at::Tensor& b, bool adds) {
  const Factor left(a), right(b);
  const int64_t stride = row_stride(output);
  if (cblas_gemm_bf16bf16f32 == nullptr || a.scalar_type() != at::kBFloat16 || left.stride == 0 || right.stride == 0 ||
      stride == 0) {
    return false;
  }
  cblas_gemm_bf16bf16f32(kRowMajor, left.transpose, right.transpose, static_cast<int>(a.size(0)),
                         static_cast<int>(b.size(1)), static_cast<int>(a.size(1)), 1, left.values, left.stride,
                         right.values, right.stride, adds ? 1 : 0, output.mutable_data_ptr<float>(),
                         static_cast<int>(stride));
  return true;
}

void widened_product(at::Tensor& output, const at::Tensor& a, const at::Tensor& b, bool adds) {
  if (is_fast_in_libtorch(a.scalar_type()) && widened_product_of_mkl(output, a, b, adds)) {
    return;
  }
  const auto left = a.to(output.scalar_type()), right = b.to(output.scalar_type());
  adds ? at::addmm_out(output, output, left, right) : at::mm_out(output, left, right);
}

}  // namespace mezzo::encoder::cpu
