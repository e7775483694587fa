#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/sort.h>

#include <tuple>

#include "encoder/cuda/block_ops.h"
#include "encoder/cuda/row_launchers.h"
#include "encoder/cuda/row_tensors.h"

namespace mezzo::encoder::MEZZO_CUDA {

at::Tensor dropout(const at::Tensor& x, const DropoutSite& site) {
  auto out = at::empty_like(x);
  if (x.numel() > 0) {
    const OnDeviceOf device(x);
    dropout(DropoutArguments{span_of(x), span_of(out), x.numel(), mask_of(site)}, device.stream);
  }
  return out;
}

at::Tensor residual_layer_norm(const at::Tensor& product,
                               const at::Tensor& bias,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& dropout,
                               const at::Tensor& row_numbers,
                               Normalised* normalised) {
  const OnDeviceOf device(product);
  const auto weight = norm.weight.contiguous(), shift = norm.bias.contiguous(), bias_values = bias.contiguous();
  const auto output = empty_rows(product, at::promote_types(product.scalar_type(), residual.scalar_type()));
  NormOutputs to = outputs_of(output, normalised, product);
  if (normalised != nullptr && output.scalar_type() != product.scalar_type()) {
    normalised->copy = empty_rows(product, product.scalar_type());
    to.copy = span_of(normalised->copy);
  }
  if (product.numel() > 0) {
    residual_layer_norm({span_of(product),
                         span_of(residual),
                         span_of(bias_values),
                         {span_of(weight), span_of(shift), static_cast<float>(norm.eps)},
                         mask_of(dropout),
                         numbers(row_numbers),
                         to,
                         product.size(0),
                         product.size(1)},
                        device.stream);
  }
  return output;
}

ResidualLayerNormGradients residual_layer_norm_backward(const at::Tensor& grad,
                                                        const Normalised& normalised,
                                                        const at::Tensor& norm_weight,
                                                        const DropoutSite& dropout,
                                                        const at::Tensor& row_numbers,
                                                        at::ScalarType product_dtype,
                                                        at::ScalarType residual_dtype) {
  const OnDeviceOf device(grad);
  const auto weight = norm_weight.contiguous();
  const auto product = empty_rows(grad, product_dtype), residual = empty_rows(grad, residual_dtype);
  const auto sums = run_backward({span_of(grad), span_of(normalised.rows), floats(normalised.rstd), span_of(weight),
                                  mask_of(dropout), /*mask_is_on_output=*/false, numbers(row_numbers), span_of(product),
                                  span_of(residual), Span{}, nullptr, grad.size(0), grad.size(1)},
                                 grad.options(), device.stream);
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
  const OnDeviceOf device(word);
  const auto weight = norm.weight.contiguous(), shift = norm.bias.contiguous();
  const auto output = at::empty({ids.size(0), word.size(1)}, word.options());
  const auto to = outputs_of(output, normalised, normalised != nullptr ? at::empty_like(output) : at::Tensor());
  if (output.numel() > 0) {
    embedding_layer_norm({span_of(word),
                          span_of(position),
                          span_of(token_type),
                          word.size(0),
                          position.size(0),
                          token_type.size(0),
                          numbers(ids),
                          numbers(positions),
                          numbers(token_types),
                          {span_of(weight), span_of(shift), static_cast<float>(norm.eps)},
                          mask_of(dropout),
                          to,
                          output.size(0),
                          output.size(1)},
                         device.stream);
  }
  return output;
}

EmbeddingGradients embedding_layer_norm_backward(const at::Tensor& grad,
                                                 const Normalised& normalised,
                                                 const at::Tensor& norm_weight,
                                                 const DropoutSite& dropout) {
  const OnDeviceOf device(grad);
  const auto weight = norm_weight.contiguous(), sum = empty_rows(grad, at::kFloat);
  const auto sums = run_backward(
      {span_of(grad), span_of(normalised.rows), floats(normalised.rstd), span_of(weight), mask_of(dropout),
       /*mask_is_on_output=*/true, nullptr, Span{}, span_of(sum), Span{}, nullptr, grad.size(0), grad.size(1)},
      grad.options(), device.stream);
  return {sum, {sums.select(0, 0), sums.select(0, 1)}};
}

namespace {

/// Indices, sorted, and where each was before.
std::tuple<at::Tensor, at::Tensor> sorted_with_order(const at::Tensor& indices, Stream stream) {
  if (indices.size(0) > kMostSorted) {
    return at::sort(indices, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  }
  const auto sorted = at::empty_like(indices), order = at::empty_like(indices);
  sort_few({numbers(indices), sorted.mutable_data_ptr<int64_t>(), order.mutable_data_ptr<int64_t>(), indices.size(0)},
           stream);
  return {sorted, order};
}

}  // namespace

void add_rows_at(const at::Tensor& indices, const at::Tensor& rows, at::Tensor& table) {
  if (rows.numel() == 0) {
    return;
  }
  const OnDeviceOf device(rows);
  const auto [sorted, order] = sorted_with_order(indices, device.stream);
  add_rows_at(
      {numbers(sorted), numbers(order), floats(rows), table.mutable_data_ptr<float>(), rows.size(0), rows.size(1)},
      device.stream);
}

void add_to_rows(const at::Tensor& to, const at::Tensor& numbers, const at::Tensor& rows) {
  if (rows.numel() == 0) {
    return;
  }
  const OnDeviceOf device(to);
  const auto values = rows.contiguous();
  add_to_rows({span_of(to), encoder::numbers(numbers), span_of(values), rows.size(0), rows.size(1)}, device.stream);
}

at::Tensor bias_activation(const at::Tensor& product, const at::Tensor& bias, Activation activation) {
  const OnDeviceOf device(product);
  const auto bias_values = bias.contiguous(), output = at::empty_like(product);
  if (product.numel() > 0) {
    bias_activation({span_of(product), span_of(bias_values), activation, span_of(output), Span{}, nullptr,
                     product.size(0), product.size(1)},
                    device.stream);
  }
  return output;
}

ActivationGradients bias_activation_backward(const at::Tensor& grad,
                                             const at::Tensor& product,
                                             const at::Tensor& bias,
                                             Activation activation) {
  TORCH_INTERNAL_ASSERT(grad.scalar_type() == product.scalar_type());
  const OnDeviceOf device(product);
  const auto bias_values = bias.contiguous(), output = at::empty_like(product);
  const auto parts =
      at::empty({ceil_div(product.size(0), kRowsOfSum), product.size(1)}, product.options().dtype(at::kFloat));
  if (product.numel() > 0) {
    bias_activation_backward({span_of(product), span_of(bias_values), activation, span_of(output), span_of(grad),
                              parts.mutable_data_ptr<float>(), product.size(0), product.size(1)},
                             device.stream);
  }
  return {grad, output, column_sums(parts)};
}

}  // namespace mezzo::encoder::MEZZO_CUDA
