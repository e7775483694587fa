#include <ATen/ops/empty.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/zeros.h>

#include "encoder/cpu/block_ops.h"
#include "encoder/cpu/row_tasks.h"
#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/tensor_spans.h"

namespace mezzo::encoder::cpu {

using kernels::cpu::ConstSpan;
using kernels::cpu::read_span;
using kernels::cpu::write_span;
namespace {

/// As rounded_bias has it; zeros for a bias that there is not.
at::Tensor bias_or_zeros(const at::Tensor& bias, int64_t size, at::ScalarType dtype) {
  return bias.defined() ? rounded_bias(bias, dtype) : at::zeros({size}, at::kFloat);
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const LayerNormParams& norm, at::ScalarType dtype, Normalised* normalised) {
  const auto weight = as_float(norm.weight), shift = bias_or_zeros(norm.bias, x.size(1), at::kFloat);
  const auto output = empty_rows(x, dtype);
  if (normalised != nullptr) {
    make_room(normalised, empty_rows(x, at::kFloat));
  }
  const LayerNorm op{
      .x = read_span(x),
      .norm = {weight.const_data_ptr<float>(), shift.const_data_ptr<float>(), static_cast<float>(norm.eps)},
      .output = write_span(output),
      .normalised = normalised != nullptr ? normalised->rows.mutable_data_ptr<float>() : nullptr,
      .rstd = normalised != nullptr ? normalised->rstd.mutable_data_ptr<float>() : nullptr};
  for_rows(x.size(0), x.size(1), [&](int64_t begin, int64_t end, float* scratch) {
    simd_kernels().layer_norm(op, begin, end, x.size(1), scratch);
  });
  return output;
}

LayerNormGradients layer_norm_backward(const at::Tensor& grad,
                                       const Normalised& normalised,
                                       const at::Tensor& norm_weight,
                                       const at::Tensor& residual,
                                       at::ScalarType x_dtype) {
  const auto weight = as_float(norm_weight), grad_x = empty_rows(grad, x_dtype);
  const LayerNormBackward op{.grad_output = read_span(grad),
                             .normalised = normalised.rows.const_data_ptr<float>(),
                             .rstd = normalised.rstd.const_data_ptr<float>(),
                             .norm_weight = weight.const_data_ptr<float>(),
                             .residual = residual.defined() ? read_span(residual) : ConstSpan{},
                             .grad_x = write_span(grad_x)};
  const auto sums = for_rows_with_sums(
      grad.size(0), grad.size(1), 2, [&](int64_t begin, int64_t end, float* partial, float* scratch) {
        simd_kernels().layer_norm_backward(op, begin, end, grad.size(1), partial, scratch);
      });
  return {grad_x, {sums.select(0, 0), sums.select(0, 1)}};
}

at::Tensor residual_dropout(const at::Tensor& product,
                            const at::Tensor& bias,
                            const at::Tensor& residual,
                            const DropoutSite& dropout,
                            const at::Tensor& row_numbers) {
  const auto bias_values = bias_or_zeros(bias, product.size(1), product.scalar_type());
  const auto output = empty_rows(product, at::promote_types(product.scalar_type(), residual.scalar_type()));
  const ResidualDropout op{.product = read_span(product),
                           .bias = bias_values.const_data_ptr<float>(),
                           .residual = read_span(residual),
                           .dropout = dropout_of(dropout),
                           .row_numbers = numbers(row_numbers),
                           .output = write_span(output)};
  for_rows(product.size(0), product.size(1), [&](int64_t begin, int64_t end, float* scratch) {
    simd_kernels().residual_dropout(op, begin, end, product.size(1), scratch);
  });
  return output;
}

ResidualDropoutGradients residual_dropout_backward(const at::Tensor& grad,
                                                   bool has_bias,
                                                   const DropoutSite& dropout,
                                                   const at::Tensor& row_numbers,
                                                   at::ScalarType product_dtype) {
  if (!has_bias && dropout.p == 0) {
    return {grad.to(product_dtype), {}};
  }
  const auto product = empty_rows(grad, product_dtype);
  const ResidualDropoutBackward op{.grad_output = read_span(grad),
                                   .dropout = dropout_of(dropout),
                                   .row_numbers = numbers(row_numbers),
                                   .grad_product = write_span(product)};
  const auto sums = for_rows_with_sums(
      grad.size(0), grad.size(1), 1, [&](int64_t begin, int64_t end, float* partial, float* scratch) {
        simd_kernels().residual_dropout_backward(op, begin, end, grad.size(1), partial, scratch);
      });
  return {product, has_bias ? sums.select(0, 0) : at::Tensor()};
}

at::Tensor gated_activation(const at::Tensor& product,
                            const at::Tensor& bias,
                            Activation activation,
                            const DropoutSite& dropout,
                            const at::Tensor& row_numbers) {
  const int64_t rows = product.size(0), columns = product.size(1) / 2;
  const auto bias_values = bias_or_zeros(bias, 2 * columns, product.scalar_type()),
             output = at::empty({rows, columns}, product.options());
  const GatedActivation op{.product = read_span(product),
                           .bias = bias_values.const_data_ptr<float>(),
                           .kind = activation,
                           .dropout = dropout_of(dropout),
                           .row_numbers = numbers(row_numbers),
                           .output = write_span(output)};
  for_rows(rows, columns, [&](int64_t begin, int64_t end, float* scratch) {
    simd_kernels().gated_activation(op, begin, end, columns, scratch);
  });
  return output;
}

ActivationGradients gated_activation_backward(const at::Tensor& grad,
                                              const at::Tensor& product,
                                              const at::Tensor& bias,
                                              Activation activation,
                                              const DropoutSite& dropout,
                                              const at::Tensor& row_numbers) {
  TORCH_INTERNAL_ASSERT(grad.scalar_type() == product.scalar_type());
  const int64_t rows = grad.size(0), columns = grad.size(1);
  const auto bias_values = bias_or_zeros(bias, 2 * columns, product.scalar_type()),
             grad_product = empty_rows(product, product.scalar_type());
  const GatedActivationBackward op{.forward = {.product = read_span(product),
                                               .bias = bias_values.const_data_ptr<float>(),
                                               .kind = activation,
                                               .dropout = dropout_of(dropout),
                                               .row_numbers = numbers(row_numbers),
                                               .output = write_span(grad)},
                                   .grad_output = read_span(grad),
                                   .grad_product = write_span(grad_product)};
  if (!bias.defined()) {
    for_rows(rows, columns, [&](int64_t begin, int64_t end, float* scratch) {
      simd_kernels().gated_activation_backward(op, begin, end, columns, nullptr, scratch);
    });
    return {grad_product, grad, {}};
  }
  const auto sums =
      for_rows_with_sums(rows, columns, 2, [&](int64_t begin, int64_t end, float* partial, float* scratch) {
        simd_kernels().gated_activation_backward(op, begin, end, columns, partial, scratch);
      });
  return {grad_product, grad, sums.view({2 * columns})};
}

}  // namespace mezzo::encoder::cpu
