#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/promote_types.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "encoder/cpu/block_ops.h"
#include "encoder/cpu/row_tasks.h"
#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/share_out.h"
#include "kernels/cpu/tensor_spans.h"

namespace mezzo::encoder::cpu {

using kernels::cpu::read_span;
using kernels::cpu::write_span;
namespace {

void check_indices(const at::Tensor& indices, const at::Tensor& table, const char* what) {
  const auto* index = indices.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < indices.size(0); ++t) {
    TORCH_CHECK_INDEX(index[t] >= 0 && index[t] < table.size(0), "mezzo::embedding_layer_norm: ", what, " ", index[t],
                      " in row ", t, " is out of range; the table has ", table.size(0));
  }
}

}  // namespace

at::Tensor residual_layer_norm(const at::Tensor& product,
                               const at::Tensor& bias,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& dropout,
                               const at::Tensor& row_numbers,
                               Normalised* normalised) {
  const auto bias_values = rounded_bias(bias, product.scalar_type()), weight = as_float(norm.weight),
             shift = as_float(norm.bias);
  const auto output = empty_rows(product, at::promote_types(product.scalar_type(), residual.scalar_type()));
  if (normalised != nullptr) {
    make_room(normalised, product.scalar_type() == at::kFloat ? product : empty_rows(product, at::kFloat));
  }
  const ResidualLayerNorm op{
      .product = read_span(product),
      .bias = bias_values.const_data_ptr<float>(),
      .residual = read_span(residual),
      .norm = {weight.const_data_ptr<float>(), shift.const_data_ptr<float>(), static_cast<float>(norm.eps)},
      .dropout = dropout_of(dropout),
      .row_numbers = numbers(row_numbers),
      .output = write_span(output),
      .normalised = normalised != nullptr ? normalised->rows.mutable_data_ptr<float>() : nullptr,
      .rstd = normalised != nullptr ? normalised->rstd.mutable_data_ptr<float>() : nullptr};
  for_rows(product.size(0), product.size(1), [&](int64_t begin, int64_t end, float* scratch) {
    simd_kernels().residual_layer_norm(op, begin, end, product.size(1), scratch);
  });
  return output;
}

ResidualLayerNormGradients residual_layer_norm_backward(const at::Tensor& grad,
                                                        const Normalised& normalised,
                                                        const at::Tensor& norm_weight,
                                                        const DropoutSite& dropout,
                                                        const at::Tensor& row_numbers,
                                                        at::ScalarType product_dtype,
                                                        at::ScalarType residual_dtype) {
  const auto weight = as_float(norm_weight);
  const auto product = empty_rows(grad, product_dtype), residual = empty_rows(grad, residual_dtype);
  const ResidualLayerNormBackward op{.grad_output = read_span(grad),
                                     .normalised = normalised.rows.const_data_ptr<float>(),
                                     .rstd = normalised.rstd.const_data_ptr<float>(),
                                     .norm_weight = weight.const_data_ptr<float>(),
                                     .dropout = dropout_of(dropout),
                                     .row_numbers = numbers(row_numbers),
                                     .grad_residual = write_span(residual),
                                     .grad_product = write_span(product)};
  const auto sums = for_rows_with_sums(
      grad.size(0), grad.size(1), 3, [&](int64_t begin, int64_t end, float* partial, float* scratch) {
        simd_kernels().residual_layer_norm_backward(op, begin, end, grad.size(1), partial, scratch);
      });
  return {product, residual, sums.select(0, 2), {sums.select(0, 0), sums.select(0, 1)}};
}

at::Tensor embedding_layer_norm(const at::Tensor& word,
                                const at::Tensor& position,
                                const at::Tensor& token_type,
                                const at::Tensor& ids,
                                const at::Tensor& positions,
                                const at::Tensor& token_types,
                                const LayerNormParams& norm,
                                const DropoutSite& dropout,
                                Normalised* normalised) {
  check_indices(ids, word, "token id");
  check_indices(positions, position, "position");
  if (token_types.defined()) {
    check_indices(token_types, token_type, "token type");
  }
  const auto type = as_float(token_type), weight = as_float(norm.weight), shift = as_float(norm.bias);
  const auto output = at::empty({ids.size(0), word.size(1)}, word.options());
  if (normalised != nullptr) {
    make_room(normalised, empty_rows(output, at::kFloat));
  }
  const EmbeddingLayerNorm op{
      .word = read_span(word),
      .position = read_span(position),
      .token_type = type.const_data_ptr<float>(),
      .ids = ids.const_data_ptr<int64_t>(),
      .positions = positions.const_data_ptr<int64_t>(),
      .token_types = numbers(token_types),
      .norm = {weight.const_data_ptr<float>(), shift.const_data_ptr<float>(), static_cast<float>(norm.eps)},
      .dropout = dropout_of(dropout),
      .output = write_span(output),
      .normalised = normalised != nullptr ? normalised->rows.mutable_data_ptr<float>() : nullptr,
      .rstd = normalised != nullptr ? normalised->rstd.mutable_data_ptr<float>() : nullptr};
  for_rows(output.size(0), output.size(1), [&](int64_t begin, int64_t end, float* scratch) {
    simd_kernels().embedding_layer_norm(op, begin, end, output.size(1), scratch);
  });
  return output;
}

EmbeddingGradients embedding_layer_norm_backward(const at::Tensor& grad,
                                                 const Normalised& normalised,
                                                 const at::Tensor& norm_weight,
                                                 const DropoutSite& dropout) {
  const auto weight = as_float(norm_weight), sum = empty_rows(grad, at::kFloat);
  const EmbeddingLayerNormBackward op{.grad_output = read_span(grad),
                                      .normalised = normalised.rows.const_data_ptr<float>(),
                                      .rstd = normalised.rstd.const_data_ptr<float>(),
                                      .norm_weight = weight.const_data_ptr<float>(),
                                      .dropout = dropout_of(dropout),
                                      .grad_sum = sum.mutable_data_ptr<float>()};
  const auto sums = for_rows_with_sums(
      grad.size(0), grad.size(1), 2, [&](int64_t begin, int64_t end, float* partial, float* scratch) {
        simd_kernels().embedding_layer_norm_backward(op, begin, end, grad.size(1), partial, scratch);
      });
  return {sum, {sums.select(0, 0), sums.select(0, 1)}};
}

void add_rows_at(const at::Tensor& indices, const at::Tensor& rows, at::Tensor& table) {
  constexpr int64_t kColumns = 64;  // of one task
  const auto* index = indices.const_data_ptr<int64_t>();
  const auto* from = rows.const_data_ptr<float>();
  auto* to = table.mutable_data_ptr<float>();
  const int64_t columns = rows.size(1), stripes = (columns + kColumns - 1) / kColumns;
  // A task adds to every `classes`-th row of the table, in the order of `rows`: the sums are the same for any number of
  // threads.
  const int64_t classes = (at::get_num_threads() + stripes - 1) / std::max<int64_t>(stripes, 1);
  kernels::cpu::share_out(stripes * classes, [&](const auto& next) {
    for (int64_t task = next(); task >= 0; task = next()) {
      const int64_t begin = task / classes * kColumns, end = std::min(columns, begin + kColumns), mine = task % classes;
      for (int64_t t = 0; t < rows.size(0); ++t) {
        if (classes > 1 && index[t] % classes != mine) {
          continue;
        }
        for (int64_t i = begin; i < end; ++i) {
          to[index[t] * columns + i] += from[t * columns + i];
        }
      }
    }
  });
}

void add_to_rows(const at::Tensor& to, const at::Tensor& numbers, const at::Tensor& rows) {
  at::Tensor(to).index_add_(0, numbers, rows.to(to.scalar_type()));
}

at::Tensor bias_activation(const at::Tensor& product, const at::Tensor& bias, Activation activation) {
  const auto bias_values = rounded_bias(bias, product.scalar_type()), output = at::empty_like(product);
  const BiasActivation op{.product = read_span(product),
                          .bias = bias_values.const_data_ptr<float>(),
                          .kind = activation,
                          .output = write_span(output)};
  for_rows(product.size(0), product.size(1), [&](int64_t begin, int64_t end, float*) {
    simd_kernels().bias_activation(op, begin, end, product.size(1));
  });
  return output;
}

ActivationGradients bias_activation_backward(const at::Tensor& grad,
                                             const at::Tensor& product,
                                             const at::Tensor& bias,
                                             Activation activation) {
  TORCH_INTERNAL_ASSERT(grad.scalar_type() == product.scalar_type());
  const auto bias_values = rounded_bias(bias, product.scalar_type()), output = at::empty_like(product);
  const BiasActivationBackward op{.product = read_span(product),
                                  .bias = bias_values.const_data_ptr<float>(),
                                  .kind = activation,
                                  .grad_output = read_span(grad),
                                  .grad_product = write_span(grad),
                                  .output = write_span(output)};
  const auto sums =
      for_rows_with_sums(product.size(0), product.size(1), 1, [&](int64_t begin, int64_t end, float* partial, float*) {
        simd_kernels().bias_activation_backward(op, begin, end, product.size(1), partial);
      });
  return {grad, output, sums.select(0, 0)};
}

}  // namespace mezzo::encoder::cpu
