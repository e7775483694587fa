
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tensors.h"
#include "encoder/cuda/block_ops.h"
#include "encoder/cuda/relative_tensors.h"
#include "encoder/cuda/row_tensors.h"

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

/// The table as the kernels read it.
at::Tensor rotary_of(const PackedAttention& attention) {
  const auto& rotary = attention.positions.rotary;
  return rotary.defined() ? rotary.to(at::kFloat).contiguous() : rotary;
}

double scale_of(const PackedAttention& attention, int64_t head_size) {
  return attention.relative.defined() ? attention.relative.scale(head_size)
                                      : 1 / std::sqrt(static_cast<double>(head_size));
}

/// Their elements side by side.
AttentionBiases dense_biases(const PackedAttention& attention) {
  const auto dense = [](const at::Tensor& bias) { return bias.defined() ? bias.contiguous() : bias; };
  const auto& [query, key, value] = attention.biases;
  return {dense(query), dense(key), dense(value)};
}

/// @param biases, rotary  as the two above have them, which the arguments point to, and to what `relative` has
PackedAttentionArguments arguments_of(const PackedAttention& attention,
                                      const AttentionBiases& biases,
                                      const at::Tensor& rotary,
                                      const RelativeTensors& relative) {
  const int64_t longest = attention.layout->longest();
  const int64_t head_size = attention.query.size(1) / attention.num_heads;
  return {.query = rows_of(attention.query),
          .key = rows_of(attention.key),
          .value = rows_of(attention.value),
          .query_bias = span_of(biases.query),
          .key_bias = span_of(biases.key),
          .value_bias = span_of(biases.value),
          .sequences = spans_of(*attention.layout, attention.key.size(0)),
          .num_heads = static_cast<int>(attention.num_heads),
          .head_size = static_cast<int>(head_size),
          .scale = static_cast<float>(scale_of(attention, head_size)),
          .mask = mask_of(attention.dropout),
          .rotary = floats_of(rotary),
          .window = static_cast<int>(std::min(attention.positions.window.value_or(longest), longest)),
          .only_first_queries = attention.only_first_queries,
          .output = {},
          .log_sum_exp = nullptr,
          .relative = relative.scores(),
          .has_tensor_cores = has_tensor_cores(attention.query.device())};
}

/// Gradients as columns of one matrix, for one product with the weights; those of lone first queries apart.
AttentionGradients room_for_gradients(const PackedAttention& attention) {
  const auto& query = attention.query;
  const int64_t hidden = query.size(1), matrices = attention.only_first_queries ? 2 : 3;
  AttentionGradients room;
  room.all = at::empty({attention.key.size(0), matrices * hidden}, query.options());
  room.query = attention.only_first_queries ? at::empty(query.sizes(), query.options()) : room.all.narrow(1, 0, hidden);
  room.key = room.all.narrow(1, (matrices - 2) * hidden, hidden);
  room.value = room.all.narrow(1, (matrices - 1) * hidden, hidden);
  return room;
}

FirstTokenArguments arguments_of(const FirstTokenAttention& attention, const at::Tensor& weights) {
  return {.query = span_of(attention.query),
          .rows = span_of(attention.rows),
          .sequences = spans_of(*attention.layout, attention.rows.size(0)),
          .num_heads = static_cast<int>(attention.query.size(0)),
          .hidden = static_cast<int>(attention.rows.size(1)),
          .scale = attention.scale,
          .mask = mask_of(attention.dropout),
          .weights = floats_of(weights),
          .weighted_rows = {},
          .weight_sums = nullptr,
          .log_sum_exp = nullptr};
}

}  // namespace

bool leaves_attention(const PackedAttention& attention) {
  const auto device = attention.query.device();
  const auto dtype = attention.query.scalar_type();
  const int64_t head_size = attention.query.size(1) / attention.num_heads;
  return !attention.only_first_queries && !attention.relative.defined() && !attention.dropout.step_offset.defined() &&
         attention.layout->is_known() && prefers_flash(device, dtype, head_size, attention.layout->longest()) &&
         runs_flash(device, dtype, head_size, attention.layout);
}

at::Tensor packed_attention(const PackedAttention& attention, at::Tensor* log_sum_exp) {
  const int64_t rows = attention.query.size(0);
  at::Tensor sums;
  if (log_sum_exp != nullptr) {
    sums = *log_sum_exp = at::empty({rows, attention.num_heads}, attention.query.options().dtype(at::kFloat));
  }
  if (attention.layout->size() == 0) {
    return at::zeros(attention.query.sizes(), attention.query.options());
  }
  const OnDeviceOf device(attention.query);
  auto output = at::empty(attention.query.sizes(), attention.query.options());
  const auto biases = dense_biases(attention);
  const auto rotary = rotary_of(attention);
  const RelativeTensors relative(attention, device.stream);
  auto arguments = arguments_of(attention, biases, rotary, relative);
  arguments.output = rows_of(output);
  arguments.log_sum_exp = floats_of(sums);
  packed_attention(arguments, device.stream);
  return output;
}

AttentionGradients packed_attention_backward(const PackedAttention& attention,
                                             const at::Tensor& output,
                                             const at::Tensor& log_sum_exp,
                                             const at::Tensor& grad) {
  const auto in_float = attention.query.options().dtype(at::kFloat);
  const int64_t hidden = attention.query.size(1);
  const bool has_biases = attention.biases.query.defined();
  auto result = room_for_gradients(attention);
  if (attention.layout->size() == 0) {
    result.all.zero_();
    const auto none = has_biases ? at::zeros({hidden}, in_float) : at::Tensor();
    result.biases = {none, none, none};
    for (const auto& [table, gradient] : {std::pair(&attention.relative.key, &result.relative_key),
                                          std::pair(&attention.relative.query, &result.relative_query)}) {
      *gradient = table->defined() ? at::zeros(table->sizes(), in_float) : *table;
    }
    return result;
  }
  TORCH_INTERNAL_ASSERT(grad.scalar_type() == attention.query.scalar_type());
  const OnDeviceOf device(attention.query);
  const auto biases = dense_biases(attention);
  const auto rotary = rotary_of(attention);
  RelativeTensors relative(attention, device.stream);
  auto arguments = arguments_of(attention, biases, rotary, relative);
  arguments.output = rows_of(output);
  arguments.log_sum_exp = floats_of(log_sum_exp);
  const int64_t parts = arguments.sequences.count * bias_parts(arguments);
  const auto products = suits_tensor_cores(arguments) ? at::Tensor() : at::empty_like(log_sum_exp),
             sums = has_biases ? at::empty({parts, 3, hidden}, in_float) : at::Tensor();
  PackedAttentionBackwardArguments backward{.forward = arguments,
                                            .grad = rows_of(grad),
                                            .products = floats_of(products),
                                            .grad_query = rows_of(result.query),
                                            .grad_key = rows_of(result.key),
                                            .grad_value = rows_of(result.value),
                                            .bias_sums = floats_of(sums),
                                            .grad_of_queries = {},
                                            .grad_of_keys = {}};
  relative.make_room(backward);
  packed_attention_backward(backward, device.stream);
  if (has_biases) {
    const auto totals = column_sums(sums);
    result.biases = {totals.select(0, 0), totals.select(0, 1), totals.select(0, 2)};
  }
  relative.add_gradients(result, device.stream);
  return result;
}

WeightedRows first_token_attention(const FirstTokenAttention& attention, at::Tensor* log_sum_exp) {
  const auto in_float = attention.query.options().dtype(at::kFloat);
  const int64_t heads = attention.query.size(0), sequences = attention.query.size(1);
  const WeightedRows output{at::empty_like(attention.query), at::empty({sequences, heads}, in_float)};
  at::Tensor sums;
  if (log_sum_exp != nullptr) {
    sums = *log_sum_exp = at::empty({sequences, heads}, in_float);
  }
  if (sequences > 0) {
    const OnDeviceOf device(attention.query);
    const auto weights = at::empty({heads, attention.rows.size(0)}, in_float);
    auto arguments = arguments_of(attention, weights);
    arguments.weighted_rows = span_of(output.rows);
    arguments.weight_sums = floats_of(output.weight_sums);
    arguments.log_sum_exp = floats_of(sums);
    first_token_attention(arguments, device.stream);
  }
  return output;
}

FirstTokenGradients first_token_attention_backward(const FirstTokenAttention& attention,
                                                   const at::Tensor& log_sum_exp,
                                                   const WeightedRows& grad,
                                                   at::ScalarType rows_dtype) {
  const auto of_rows = attention.rows.options().dtype(rows_dtype);
  if (attention.layout->size() == 0) {
    return {at::empty_like(attention.query), at::zeros(attention.rows.sizes(), of_rows)};
  }
  TORCH_INTERNAL_ASSERT(grad.rows.scalar_type() == attention.query.scalar_type());
  const OnDeviceOf device(attention.query);
  const FirstTokenGradients result{at::empty_like(attention.query), at::empty(attention.rows.sizes(), of_rows)};
  const auto weights = at::empty({2, attention.query.size(0), attention.rows.size(0)}, of_rows.dtype(at::kFloat));
  auto arguments = arguments_of(attention, weights[0]);
  arguments.log_sum_exp = floats_of(log_sum_exp);
  first_token_attention_backward({.forward = arguments,
                                  .grad_weighted_rows = span_of(grad.rows),
                                  .grad_weight_sums = floats_of(grad.weight_sums),
                                  .grad_weights = floats_of(weights[1]),
                                  .grad_query = span_of(result.query),
                                  .grad_rows = span_of(result.rows)},
                                 device.stream);
  return result;
}

}  // namespace mezzo::encoder::MEZZO_CUDA
