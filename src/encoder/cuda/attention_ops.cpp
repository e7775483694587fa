#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/block_ops.h"
#include "encoder/cuda/row_tensors.h"
#include "encoder/device_products.h"
#include "encoder/sequence_layout.h"
#include "kernels/cuda/tensors.h"

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

/// The elements of a contiguous tensor; nullptr of an undefined one.
float* floats_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr; }

/// Of a matrix whose columns lie side by side.
RowsSpan rows_of(const at::Tensor& matrix) { return {span_of(matrix), matrix.stride(0)}; }

at::Tensor dense(const at::Tensor& bias) { return bias.defined() ? bias.contiguous() : bias; }

/// [rows, heads * head_size] -> [heads, rows, head_size]
at::Tensor by_heads(const at::Tensor& rows, int64_t num_heads) {
  return rows.unflatten(1, {num_heads, -1}).transpose(0, 1);
}

/// Tensors that the kernels' arguments point to.
struct Inputs {
  AttentionBiases biases;
  at::Tensor rotary;
  // Of relative positions: rows with their biases, as their dtype holds both, and products with tables; or undefined.
  at::Tensor query, key, of_queries, of_keys;
};

Inputs inputs_of(const AttentionArguments& attention) {
  const int64_t num_heads = attention.description.num_heads;
  const auto& relative = attention.description.relative;
  const auto& rotary = attention.description.rotary;
  Inputs inputs;
  inputs.biases = {dense(attention.biases.query), dense(attention.biases.key), dense(attention.biases.value)};
  inputs.rotary = rotary.defined() ? rotary.to(at::kFloat).contiguous() : rotary;
  const auto multiply = [&](const at::Tensor& rows, const at::Tensor& bias, const at::Tensor& table,
                            at::Tensor& with_bias, at::Tensor& product) {
    if (table.defined()) {
      with_bias = bias.defined() ? at::add(rows, bias.to(rows.scalar_type())) : rows;
      product = device_product(by_heads(with_bias, num_heads), by_heads(table, num_heads).transpose(1, 2), at::kFloat);
    }
  };
  multiply(attention.query, inputs.biases.query, relative.key, inputs.query, inputs.of_queries);
  multiply(attention.key, inputs.biases.key, relative.query, inputs.key, inputs.of_keys);
  return inputs;
}

PackedAttentionArguments arguments_of(const AttentionArguments& attention,
                                      const Inputs& inputs,
                                      const at::Tensor& output,
                                      const at::Tensor& log_sum_exp) {
  const SequenceLayout& layout = *attention.layout;
  const RelativePositions& relative = attention.description.relative;
  PackedAttentionArguments arguments{.rule = attention.rule(),
                                     .query = rows_of(attention.query),
                                     .key = rows_of(attention.key),
                                     .value = rows_of(attention.value),
                                     .query_bias = span_of(inputs.biases.query),
                                     .key_bias = span_of(inputs.biases.key),
                                     .value_bias = span_of(inputs.biases.value),
                                     .sequences = {layout.table().const_data_ptr<int32_t>(), layout.size(),
                                                   attention.key.size(0), static_cast<int>(layout.longest())},
                                     .mask = mask_of(attention.description.dropout),
                                     .rotary = floats_of(inputs.rotary),
                                     .relative = {},
                                     .output = rows_of(output),
                                     .log_sum_exp = floats_of(log_sum_exp)};
  if (relative.defined()) {
    arguments.relative = {.rows = relative.rows.const_data_ptr<int64_t>() + relative.rows.size(0) / 2,
                          .num_rows = static_cast<int>(relative.num_rows()),
                          .of_queries = floats_of(inputs.of_queries),
                          .of_keys = floats_of(inputs.of_keys)};
  }
  return arguments;
}

/// Gradients as columns of one matrix, for one product with the weights; gradients of lone first queries are apart.
AttentionGradients room_for_gradients(const AttentionArguments& attention) {
  const auto& query = attention.query;
  const bool only_first = attention.description.only_first_queries;
  const int64_t hidden = query.size(1), matrices = only_first ? 2 : 3;
  AttentionGradients room;
  room.all = at::empty({attention.key.size(0), matrices * hidden}, query.options());
  room.query = only_first ? at::empty(query.sizes(), query.options()) : room.all.narrow(1, 0, hidden);
  room.key = room.all.narrow(1, (matrices - 2) * hidden, hidden);
  room.value = room.all.narrow(1, (matrices - 1) * hidden, hidden);
  return room;
}

AttentionGradients zero_gradients(const AttentionArguments& attention) {
  const auto zeros_like = [&](const at::Tensor& tensor) {
    return tensor.defined() ? at::zeros(tensor.sizes(), tensor.options().dtype(at::kFloat)) : tensor;
  };
  auto result = room_for_gradients(attention);
  result.all.zero_();
  result.biases = {zeros_like(attention.biases.query), zeros_like(attention.biases.key),
                   zeros_like(attention.biases.value)};
  result.relative_key = zeros_like(attention.description.relative.key);
  result.relative_query = zeros_like(attention.description.relative.query);
  return result;
}

/// To be called after the gradients of products with tables. Adds to the gradients of queries and keys, makes the
/// tables' gradients, and sums the biases' again.
void add_relative_gradients(const AttentionArguments& attention,
                            const Inputs& inputs,
                            const at::Tensor& grad_of_queries,
                            const at::Tensor& grad_of_keys,
                            AttentionGradients& gradients) {
  const int64_t num_heads = attention.description.num_heads;
  const auto add = [&](const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& table,
                       const at::Tensor& grad_rows) {
    if (!table.defined()) {
      return at::Tensor();
    }
    add_device_product(by_heads(grad_rows, num_heads), grad, by_heads(table, num_heads));
    return device_product(grad.transpose(1, 2), by_heads(rows, num_heads), at::kFloat);
  };
  const auto& relative = attention.description.relative;
  const auto key = add(grad_of_queries, inputs.query, relative.key, gradients.query),
             query = add(grad_of_keys, inputs.key, relative.query, gradients.key);
  const auto finish = [](const at::Tensor& of_heads, const at::Tensor& rows, at::Tensor& table, at::Tensor& bias) {
    if (of_heads.defined()) {
      table = of_heads.transpose(0, 1).flatten(1);  // [heads, R, head_size] -> [R, heads * head_size]
      bias = bias.defined() ? rows.sum(0, /*keepdim=*/false, at::kFloat) : bias;
    }
  };
  finish(key, gradients.query, gradients.relative_key, gradients.biases.query);
  finish(query, gradients.key, gradients.relative_query, gradients.biases.key);
}

}  // namespace

bool takes_heads(const at::Device& device, at::ScalarType dtype, int64_t head_size, bool has_extra_terms) {
  const c10::DeviceGuard guard(device);
  const bool are_taken = head_size <= kLargestHead && has_kernel(dtype) &&
                         has_memory_for_heads(element_of(dtype), head_size, has_extra_terms);
  if (!are_taken) {
    TORCH_WARN_ONCE("mezzo: the attention kernels do not support heads of ", head_size, " columns in ",
                    dtype_name(dtype), " on ", device, ": LibTorch's slower operations run instead");
  }
  return are_taken;
}

at::Tensor packed_attention(const AttentionArguments& attention, at::Tensor* log_sum_exp) {
  const auto& query = attention.query;
  at::Tensor sums;
  if (log_sum_exp != nullptr) {
    sums = *log_sum_exp =
        at::empty({query.size(0), attention.description.num_heads}, query.options().dtype(at::kFloat));
  }
  if (attention.layout->size() == 0) {
    return at::zeros(query.sizes(), query.options());
  }
  const OnDeviceOf device(query);
  auto output = at::empty(query.sizes(), query.options());
  const Inputs inputs = inputs_of(attention);
  packed_attention(arguments_of(attention, inputs, output, sums), device.stream);
  return output;
}

AttentionGradients packed_attention_backward(const AttentionArguments& attention,
                                             const at::Tensor& output,
                                             const at::Tensor& log_sum_exp,
                                             const at::Tensor& grad) {
  if (attention.layout->size() == 0) {
    return zero_gradients(attention);
  }
  TORCH_INTERNAL_ASSERT(grad.scalar_type() == attention.query.scalar_type());
  const OnDeviceOf device(attention.query);
  auto result = room_for_gradients(attention);
  Inputs inputs = inputs_of(attention);
  const auto room = [&](const at::Tensor& scores) {
    return scores.defined() ? at::zeros(scores.sizes(), attention.key.options()) : scores;
  };
  const auto grad_of_queries = room(inputs.of_queries), grad_of_keys = room(inputs.of_keys);
  const auto arguments = arguments_of(attention, inputs, output, log_sum_exp);
  const auto& biases = inputs.biases;
  const bool has_biases = biases.query.defined() || biases.key.defined() || biases.value.defined();
  const auto products = at::empty_like(log_sum_exp);
  const auto sums = has_biases ? at::empty({arguments.sequences.count * bias_parts(arguments), 3, grad.size(1)},
                                           log_sum_exp.options())
                               : at::Tensor();
  packed_attention_backward({.forward = arguments,
                             .grad = rows_of(grad),
                             .products = floats_of(products),
                             .grad_query = rows_of(result.query),
                             .grad_key = rows_of(result.key),
                             .grad_value = rows_of(result.value),
                             .bias_sums = floats_of(sums),
                             .grad_of_queries = span_of(grad_of_queries),
                             .grad_of_keys = span_of(grad_of_keys)},
                            device.stream);
  if (has_biases) {
    const auto totals = column_sums(sums);
    const auto of = [&](const at::Tensor& bias, int64_t which) {
      return bias.defined() ? totals.select(0, which) : bias;
    };
    result.biases = {of(biases.query, 0), of(biases.key, 1), of(biases.value, 2)};
  }
  if (attention.description.relative.defined()) {
    inputs.of_queries.reset();
    inputs.of_keys.reset();
    add_relative_gradients(attention, inputs, grad_of_queries, grad_of_keys, result);
  }
  return result;
}

}  // namespace mezzo::encoder::MEZZO_CUDA
