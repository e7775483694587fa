#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "encoder/fused/block.h"
#include "encoder/fused/nodes.h"

namespace mezzo::encoder::fused {
namespace {

/// Heads apart, and side by side.
class Heads {
 public:
  Heads(int64_t count, int64_t hidden) : count_(count), size_(hidden / count) {}

  int64_t count() const { return count_; }
  int64_t size() const { return size_; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(size_)); }

  /// Columns of [B, H], a head's each: [num_heads, B, D].
  at::Tensor columns(const at::Tensor& rows) const { return apart(rows).transpose(0, 1); }
  /// Rows of a weight [H, H], a head's each: [num_heads, D, H].
  at::Tensor rows(const at::Tensor& weight) const { return weight.unflatten(0, {count_, size_}); }
  /// [B, H] as [B, num_heads, D].
  at::Tensor apart(const at::Tensor& rows) const { return rows.unflatten(1, {count_, size_}); }
  /// [num_heads, B, D] as [B, H].
  static at::Tensor side_by_side(const at::Tensor& heads) { return heads.transpose(0, 1).flatten(1); }

 private:
  int64_t count_, size_;
};

/// Attention of which only the sequences' first rows are wanted: see encoder::FirstTokenAttention.
struct FirstToken : torch::autograd::Function<FirstToken> {
  struct Settings {
    int64_t num_heads;
    DropoutSite dropout;
    SequenceLayoutPtr layout;
    bool is_differentiable;
    at::ScalarType x_dtype, weight_dtype, dtype;        ///< the last one of products
    at::Tensor query_weight, key_weight, value_weight;  ///< to compute with
  };

  enum Input { kX, kQueryWeight, kKeyWeight, kValueWeight, kQueryBias, kKeyBias, kValueBias, kInputs };
  enum Saved { kFirst = kInputs, kQuery, kSeen, kLogSumExp, kWeighted, kWeightSums };  // behind the inputs

  static variable_list forward(AutogradContext* ctx, at::TensorList given, const Settings& settings) {
    const NoAutocast no_autocast;
    const auto inputs = inputs_of(given);
    const at::Tensor &x = inputs[kX], &first_rows = settings.layout->first_rows();
    const BlockOps& ops = ops_of(x);
    const auto dtype = settings.dtype;
    const auto input = x.to(dtype), first = input.index_select(0, first_rows);
    const Heads heads(settings.num_heads, x.size(1));
    const auto in_float = [&](const at::Tensor& bias) { return bias.to(dtype).to(at::kFloat); };

    Products of_query;
    const auto product = of_query.add(first, settings.query_weight.t(), at::kFloat);
    of_query.compute();
    const auto query = product.add_(in_float(inputs[kQueryBias])).to(dtype);
    Products of_heads;
    const auto seen = at::empty({heads.count(), first.size(0), first.size(1)}, first.options());
    of_heads.assign(seen, heads.columns(query), heads.rows(settings.key_weight));
    of_heads.compute();
    at::Tensor log_sum_exp;
    const auto weighted =
        ops.first_token_attention({seen, input, static_cast<float>(heads.scale()), settings.layout, settings.dropout},
                                  settings.is_differentiable ? &log_sum_exp : nullptr);
    Products of_values;
    const auto values = at::empty({heads.count(), first.size(0), heads.size()}, first.options().dtype(at::kFloat));
    of_values.assign(values, weighted.rows, heads.rows(settings.value_weight).transpose(1, 2));
    of_values.compute();
    const auto value_biases =
        weighted.weight_sums.unsqueeze(2) * in_float(inputs[kValueBias]).view({heads.count(), -1});
    if (settings.is_differentiable) {
      ctx->save_for_backward({input, settings.query_weight, settings.key_weight, settings.value_weight,
                              inputs[kQueryBias], inputs[kKeyBias], inputs[kValueBias], first, query, seen, log_sum_exp,
                              weighted.rows, weighted.weight_sums});
      Settings of_backward = settings;
      of_backward.query_weight = of_backward.key_weight = of_backward.value_weight = at::Tensor();
      keep(ctx, std::move(of_backward));
    }
    return {(Heads::side_by_side(values) + value_biases.flatten(1)).to(dtype), x.index_select(0, first_rows)};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Backward<Settings> node(ctx, "attention");
    const Settings& settings = node.settings;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &input = saved[kX], &key_weight = saved[kKeyWeight], &value_weight = saved[kValueWeight],
                     &first = saved[kFirst], &weighted = saved[kWeighted], &seen = saved[kSeen];
    const at::Tensor &grad_context = grads[0], &grad_residual = grads[1];
    const auto dtype = input.scalar_type();
    const BlockOps& ops = ops_of(input);
    const Heads heads(settings.num_heads, input.size(1));
    variable_list result(kInputs + 1);
    const auto room_for_weight = [&](Input weight) {
      return ctx->needs_input_grad(weight)
                 ? at::empty(saved[weight].sizes(), input.options().dtype(settings.weight_dtype))
                 : at::Tensor();
    };

    Products of_values;
    const auto grad_weighted = at::empty_like(weighted);
    result[kValueWeight] = room_for_weight(kValueWeight);
    const auto grad_values = heads.columns(grad_context);
    if (result[kValueWeight].defined()) {
      of_values.assign_aside(heads.rows(result[kValueWeight]), grad_values.transpose(1, 2), weighted);
    }
    of_values.assign(grad_weighted, grad_values, heads.rows(value_weight));
    of_values.compute();
    const auto grad_heads = heads.apart(grad_context.to(at::kFloat));
    const auto value_bias = saved[kValueBias].to(dtype).to(at::kFloat).view({heads.count(), -1});
    const auto inner = ops.first_token_attention_backward(
        {seen, input, static_cast<float>(heads.scale()), settings.layout, settings.dropout}, saved[kLogSumExp],
        {grad_weighted, (grad_heads * value_bias).sum(2)}, settings.x_dtype);

    Products of_heads;
    const auto grad_parts = at::empty({heads.count(), first.size(0), heads.size()}, first.options().dtype(at::kFloat));
    result[kKeyWeight] = room_for_weight(kKeyWeight);
    if (result[kKeyWeight].defined()) {
      of_heads.assign_aside(heads.rows(result[kKeyWeight]), heads.columns(saved[kQuery]).transpose(1, 2), inner.query);
    }
    of_heads.assign(grad_parts, inner.query, heads.rows(key_weight).transpose(1, 2));
    of_heads.compute();
    const auto grad_product = Heads::side_by_side(grad_parts), grad_query = grad_product.to(dtype);
    Products of_query;
    result[kQueryWeight] = grad_weight(ctx, kQueryWeight, of_query, grad_query, first, settings.weight_dtype);
    of_query.add_to(grad_residual, grad_query, saved[kQueryWeight]);
    of_query.compute();
    result[kX] = inner.rows;
    ops.add_to_rows(result[kX], settings.layout->first_rows(), grad_residual);

    result[kQueryBias] = grad_vector(grad_product.sum(0), saved[kQueryBias]);
    result[kKeyBias] = at::zeros_like(saved[kKeyBias]);  // it shifts all scores of a query equally
    result[kValueBias] =
        grad_vector((saved[kWeightSums].unsqueeze(2) * grad_heads).sum(0).flatten(), saved[kValueBias]);
    return result;
  }
};

}  // namespace

Projection first_token_attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  const auto dtype = compute_dtype(x);
  constexpr bool kInt8 = false;  // weights are taken apart by heads, and rows are few
  const auto& layers = params.query_key_value;
  const Weight query(layers[0], dtype, kInt8), key(layers[1], dtype, kInt8), value(layers[2], dtype, kInt8);
  const std::vector<at::Tensor> inputs{
      x, query.leaf, key.leaf, value.leaf, layers[0].bias, layers[1].bias, layers[2].bias};
  const auto outputs = apply_node<FirstToken>(
      inputs,
      FirstToken::Settings{params.attention.num_heads, params.attention.dropout, layout, at::GradMode::is_enabled(),
                           x.scalar_type(), query.leaf.scalar_type(), dtype, query.value, key.value, value.value});
  return {{outputs[0]}, outputs[1]};
}

}  // namespace mezzo::encoder::fused
