#include "encoder/cuda/relative_tensors.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "encoder/cuda/attention_tensors.h"
#include "encoder/products.h"

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

/// A bias is added as the rows' dtype holds it, and so is the sum.
at::Tensor with_bias(const at::Tensor& rows, const at::Tensor& bias) {
  return bias.defined() ? at::add(rows, bias.to(rows.scalar_type())) : rows;
}

/// [heads, R, head_size] -> [R, heads * head_size].
at::Tensor heads_joined(const at::Tensor& of_heads) { return of_heads.transpose(0, 1).flatten(1); }

}  // namespace

RelativeTensors::RelativeTensors(const PackedAttention& attention, Stream stream)
    : attention_(attention), relative_(attention.relative) {
  if (!relative_.defined()) {
    return;
  }
  TORCH_INTERNAL_ASSERT(!attention.positions.rotary.defined() && !attention.positions.window.has_value());
  Products products;
  if (relative_.key.defined()) {
    query_ = with_bias(attention.query, attention.biases.query);
    of_queries_ = products.add(by_heads(query_), by_heads(relative_.key).transpose(1, 2), at::kFloat);
  }
  if (relative_.query.defined()) {
    key_ = with_bias(attention.key, attention.biases.key);
    if (attention.only_first_queries) {
      of_keys_ = at::empty({attention.num_heads, key_.size(0)}, key_.options().dtype(at::kFloat));
      first_query_scores(first_query_arguments(), stream);
    } else {
      of_keys_ = products.add(by_heads(key_), by_heads(relative_.query).transpose(1, 2), at::kFloat);
    }
  }
  products.compute();
}

RelativeScores RelativeTensors::scores() const {
  if (!relative_.defined()) {
    return {};
  }
  return {.rows = relative_.rows.const_data_ptr<int64_t>() + relative_.rows.size(0) / 2,
          .num_rows = static_cast<int>(relative_.num_rows()),
          .of_queries = floats_of(of_queries_),
          .of_keys = floats_of(of_keys_)};
}

void RelativeTensors::make_room(PackedAttentionBackwardArguments& arguments) {
  const auto room = [&](const at::Tensor& scores) {
    return scores.defined() ? at::zeros(scores.sizes(), attention_.key.options()) : scores;
  };
  grad_of_queries_ = room(of_queries_);
  grad_of_keys_ = room(of_keys_);
  arguments.grad_of_queries = span_of(grad_of_queries_);
  arguments.grad_of_keys = span_of(grad_of_keys_);
}

void RelativeTensors::add_gradients(AttentionGradients& gradients, Stream stream) {
  of_queries_.reset();
  of_keys_.reset();
  Products products;
  const auto add = [&](const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& table,
                       const at::Tensor& grad_rows) {
    products.add_to(by_heads(grad_rows), grad, by_heads(table));
    return products.add(grad.transpose(1, 2), by_heads(rows), at::kFloat);
  };
  at::Tensor key_by_heads, query_by_heads;
  if (relative_.key.defined()) {
    key_by_heads = add(grad_of_queries_, query_, relative_.key, gradients.query);
  }
  if (relative_.query.defined() && !attention_.only_first_queries) {
    query_by_heads = add(grad_of_keys_, key_, relative_.query, gradients.key);
  }
  products.compute();
  if (relative_.key.defined()) {
    gradients.relative_key = heads_joined(key_by_heads);
  }
  if (query_by_heads.defined()) {
    gradients.relative_query = heads_joined(query_by_heads);
  } else if (relative_.query.defined()) {
    gradients.relative_query = at::empty(relative_.query.sizes(), key_.options().dtype(at::kFloat));
    first_query_scores_backward({.forward = first_query_arguments(),
                                 .grad_scores = span_of(grad_of_keys_),
                                 .grad_key = rows_of(gradients.key),
                                 .grad_table = floats_of(gradients.relative_query)},
                                stream);
  }
  const auto sum_again = [](const at::Tensor& table, const at::Tensor& rows, at::Tensor& bias) {
    if (table.defined() && bias.defined()) {
      bias = rows.sum(0, /*keepdim=*/false, at::kFloat);
    }
  };
  sum_again(relative_.key, gradients.query, gradients.biases.query);
  sum_again(relative_.query, gradients.key, gradients.biases.key);
}

at::Tensor RelativeTensors::by_heads(const at::Tensor& rows) const {
  return rows.unflatten(1, {attention_.num_heads, -1}).transpose(0, 1);  // [heads, rows, head_size]
}

FirstQueryScoresArguments RelativeTensors::first_query_arguments() const {
  return {.key = rows_of(key_),
          .table = span_of(relative_.query),
          .sequences = spans_of(*attention_.layout, key_.size(0)),
          .num_heads = static_cast<int>(attention_.num_heads),
          .head_size = static_cast<int>(key_.size(1) / attention_.num_heads),
          .rows = scores().rows,
          .num_rows = static_cast<int>(relative_.num_rows()),
          .scores = floats_of(of_keys_)};
}

}  // namespace mezzo::encoder::MEZZO_CUDA
