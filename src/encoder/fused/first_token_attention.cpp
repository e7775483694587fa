#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "encoder/fused/attention_node.h"

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
struct FirstTokenAttention : torch::autograd::Function<FirstTokenAttention> {
  static constexpr bool kTakesInt8 = false;  // weights are taken apart by heads, and rows are few

  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& /*query_weight*/,
                            const at::Tensor& query_bias,
                            const at::Tensor& /*key_weight*/,
                            const at::Tensor& key_bias,
                            const at::Tensor& /*value_weight*/,
                            const at::Tensor& value_bias,
                            const at::Tensor& /*output_weight*/,
                            const at::Tensor& output_bias,
                            const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias,
                            const AttentionSettings& settings,
                            const at::Tensor& query_weight,
                            const at::Tensor& key_weight,
                            const at::Tensor& value_weight,
                            const at::Tensor& output_weight) {
    const NoAutocast no_autocast;
    const BlockOps& ops = ops_of(x);
    const auto dtype = settings.dtype;
    const auto input = x.to(dtype), first = input.index_select(0, settings.first_rows);
    const Heads heads(settings.num_heads, x.size(1));
    const auto in_float = [&](const at::Tensor& bias) { return bias.to(dtype).to(at::kFloat); };

    Products of_query;
    const auto product = of_query.add(first, query_weight.t(), at::kFloat);
    of_query.compute();
    const auto query = product.add_(in_float(query_bias)).to(dtype);
    Products of_heads;
    const auto seen = at::empty({heads.count(), first.size(0), first.size(1)}, first.options());
    of_heads.assign(seen, heads.columns(query), heads.rows(key_weight));
    of_heads.compute();
    at::Tensor log_sum_exp;
    const auto weighted = ops.first_token_attention(
        {seen, input, static_cast<float>(heads.scale()), settings.layout, settings.weights_dropout},
        settings.is_differentiable ? &log_sum_exp : nullptr);
    Products of_values;
    const auto values = at::empty({heads.count(), first.size(0), heads.size()}, first.options().dtype(at::kFloat));
    of_values.assign(values, weighted.rows, heads.rows(value_weight).transpose(1, 2));
    of_values.compute();
    const auto value_biases = weighted.weight_sums.unsqueeze(2) * in_float(value_bias).view({heads.count(), -1});
    const auto context = (Heads::side_by_side(values) + value_biases.flatten(1)).to(dtype);

    Normalised normalised;
    auto output = ops.residual_layer_norm(matrix_product(context, output_weight.t()), output_bias,
                                          x.index_select(0, settings.first_rows),
                                          {norm_weight, norm_bias, settings.eps}, settings.output_dropout,
                                          settings.first_rows, settings.is_differentiable ? &normalised : nullptr);
    if (settings.is_differentiable) {
      ctx->save_for_backward(
          {input,         query_weight,  query_bias,           key_weight, key_bias,        value_weight,   value_bias,
           output_weight, output_bias,   norm_weight,          norm_bias,  first,           query,          seen,
           log_sum_exp,   weighted.rows, weighted.weight_sums, context,    normalised.rows, normalised.rstd});
      keep(ctx, settings);
    }
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("attention block");
    const NoAutocast no_autocast;
    const SideStream aside;
    const auto saved = ctx->get_saved_variables();
    const auto holder = kept<AttentionSettings>(ctx);
    const AttentionSettings& settings = holder->settings;
    const auto &input = saved[kX], &key_weight = saved[kKeyWeight], &value_weight = saved[kValueWeight];
    const auto &first = saved[kInputs], &query = saved[kInputs + 1], &seen = saved[kInputs + 2],
               &log_sum_exp = saved[kInputs + 3], &weighted = saved[kInputs + 4], &weight_sums = saved[kInputs + 5],
               &context = saved[kInputs + 6];
    const auto dtype = input.scalar_type();
    const BlockOps& ops = ops_of(input);
    const Heads heads(settings.num_heads, input.size(1));
    variable_list result(kAllInputs);
    const auto room_for_weight = [&](AttentionInput weight) {
      return ctx->needs_input_grad(weight)
                 ? at::empty(saved[weight].sizes(), input.options().dtype(settings.weight_dtype))
                 : at::Tensor();
    };

    const auto behind = backward_behind_attention(ctx, grads[0], settings, saved, context,
                                                  {saved[kInputs + 7], saved[kInputs + 8]}, result);
    const auto& grad_context = behind.context;
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
        {seen, input, static_cast<float>(heads.scale()), settings.layout, settings.weights_dropout}, log_sum_exp,
        {grad_weighted, (grad_heads * value_bias).sum(2)}, settings.x_dtype);

    Products of_heads;
    const auto grad_parts = at::empty({heads.count(), first.size(0), heads.size()}, first.options().dtype(at::kFloat));
    result[kKeyWeight] = room_for_weight(kKeyWeight);
    if (result[kKeyWeight].defined()) {
      of_heads.assign_aside(heads.rows(result[kKeyWeight]), heads.columns(query).transpose(1, 2), inner.query);
    }
    of_heads.assign(grad_parts, inner.query, heads.rows(key_weight).transpose(1, 2));
    of_heads.compute();
    const auto grad_product = Heads::side_by_side(grad_parts), grad_query = grad_product.to(dtype);
    Products of_query;
    result[kQueryWeight] = grad_weight(ctx, kQueryWeight, of_query, grad_query, first, settings.weight_dtype);
    of_query.add_to(behind.residual, grad_query, saved[kQueryWeight]);
    of_query.compute();
    result[kX] = inner.rows;
    ops.add_to_rows(result[kX], settings.first_rows, behind.residual);

    result[kQueryBias] = grad_vector(grad_product.sum(0), saved[kQueryBias]);
    result[kKeyBias] = at::zeros_like(saved[kKeyBias]);  // it shifts all scores of a query alike
    result[kValueBias] = grad_vector((weight_sums.unsqueeze(2) * grad_heads).sum(0).flatten(), saved[kValueBias]);
    return result;
  }
};

}  // namespace

at::Tensor first_token_attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout) {
  return params.relative.defined() ? relative_attention(x, params, layout, layout->first_rows())
                                   : apply_attention<FirstTokenAttention>(x, params, layout, layout->first_rows());
}

}  // namespace mezzo::encoder::fused
