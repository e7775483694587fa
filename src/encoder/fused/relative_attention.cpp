#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "encoder/fused/attention_node.h"
#include "kernels/operator.h"

namespace mezzo::encoder::fused {
namespace {

using kernels::if_defined;
using MaybeTable = std::optional<at::Tensor>;

/// Attention with scores for relative positions, of all rows or of the sequences' first.
struct RelativeAttention : torch::autograd::Function<RelativeAttention> {
  static constexpr bool kTakesInt8 = true;

  enum Input { kPositionKey = kInputs, kPositionQuery, kAll = kPositionQuery + 6 };
  enum Saved { kQuery = kPositionQuery + 1, kKey, kValue, kLogSumExp, kContext, kNormalised, kRstd };

  static PackedAttention attention_of(const AttentionSettings& settings,
                                      const at::Tensor& query,
                                      const at::Tensor& key,
                                      const at::Tensor& value,
                                      const AttentionBiases& biases,
                                      const RelativePositions& relative) {
    return {query,
            key,
            value,
            biases,
            settings.num_heads,
            settings.layout,
            settings.weights_dropout,
            /*positions=*/{},
            settings.first_rows.defined(),
            relative};
  }

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
                            const MaybeTable& position_key,
                            const MaybeTable& position_query,
                            const AttentionSettings& settings,
                            const at::Tensor& query_weight,
                            const at::Tensor& key_weight,
                            const at::Tensor& value_weight,
                            const at::Tensor& output_weight) {
    const NoAutocast no_autocast;
    const BlockOps& ops = ops_of(x);
    const auto dtype = settings.dtype;
    const auto input = input_of_products(x, query_weight, dtype);
    const auto& first = settings.first_rows;
    const auto table_of = [&](const MaybeTable& table) { return table ? table->to(dtype).contiguous() : at::Tensor(); };
    const RelativePositions relative{table_of(position_key), table_of(position_query), settings.relative_rows};
    Products products;
    const auto query = products.add(first.defined() ? input.index_select(0, first) : input, query_weight.t(), dtype);
    const auto key = products.add(input, key_weight.t(), dtype), value = products.add(input, value_weight.t(), dtype);
    products.compute();
    at::Tensor log_sum_exp;
    const AttentionBiases biases{query_bias, key_bias, value_bias};
    const auto context = ops.packed_attention(attention_of(settings, query, key, value, biases, relative),
                                              settings.is_differentiable ? &log_sum_exp : nullptr);
    Normalised normalised;
    auto output =
        ops.residual_layer_norm(matrix_product(context, output_weight.t(), dtype), output_bias,
                                first.defined() ? x.index_select(0, first) : x, {norm_weight, norm_bias, settings.eps},
                                settings.output_dropout, first, settings.is_differentiable ? &normalised : nullptr);
    if (settings.is_differentiable) {
      ctx->save_for_backward({input,        query_weight, query_bias,     key_weight,      key_bias,
                              value_weight, value_bias,   output_weight,  output_bias,     norm_weight,
                              norm_bias,    relative.key, relative.query, query,           key,
                              value,        log_sum_exp,  context,        normalised.rows, normalised.rstd});
      ctx->saved_data["key_dtype"] = position_key ? position_key->scalar_type() : dtype;
      ctx->saved_data["query_dtype"] = position_query ? position_query->scalar_type() : dtype;
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
    const auto &input = saved[kX], &first = settings.first_rows;
    const BlockOps& ops = ops_of(input);
    variable_list result(kAll);

    const auto behind = backward_behind_attention(ctx, grads[0], settings, saved, saved[kContext],
                                                  {saved[kNormalised], saved[kRstd]}, result);
    const AttentionBiases biases{saved[kQueryBias], saved[kKeyBias], saved[kValueBias]};
    const auto inner = ops.packed_attention_backward(
        attention_of(settings, saved[kQuery], saved[kKey], saved[kValue], biases,
                     {saved[kPositionKey], saved[kPositionQuery], settings.relative_rows}),
        saved[kContext], saved[kLogSumExp], behind.context);

    Products products;
    const auto queried = first.defined() ? input.index_select(0, first) : input;
    result[kQueryWeight] = grad_weight(ctx, kQueryWeight, products, inner.query, queried, settings.weight_dtype);
    result[kKeyWeight] = grad_weight(ctx, kKeyWeight, products, inner.key, input, settings.weight_dtype);
    result[kValueWeight] = grad_weight(ctx, kValueWeight, products, inner.value, input, settings.weight_dtype);
    at::Tensor of_first;
    if (first.defined()) {
      result[kX] = at::zeros(input.sizes(), behind.residual.options());
      of_first = products.add(inner.query, saved[kQueryWeight], settings.x_dtype);
    } else {
      result[kX] = behind.residual;
      products.add_to(result[kX], inner.query, saved[kQueryWeight]);
    }
    products.add_to(result[kX], inner.key, saved[kKeyWeight]);
    products.add_to(result[kX], inner.value, saved[kValueWeight]);
    products.compute();
    if (first.defined()) {
      ops.add_to_rows(result[kX], first, of_first + behind.residual);
    }
    set_bias_gradients(inner.biases, saved, result);
    const auto of_table = [&](const at::Tensor& grad, const char* table_dtype) {
      return grad.defined() ? grad.to(ctx->saved_data.at(table_dtype).toScalarType()) : grad;
    };
    result[kPositionKey] = of_table(inner.relative_key, "key_dtype");
    result[kPositionQuery] = of_table(inner.relative_query, "query_dtype");
    return result;
  }
};

}  // namespace

at::Tensor relative_attention(const at::Tensor& x,
                              const AttentionParams& params,
                              const SequenceLayoutPtr& layout,
                              const at::Tensor& first_rows) {
  return apply_attention<RelativeAttention>(x, params, layout, first_rows, if_defined(params.relative.key),
                                            if_defined(params.relative.query));
}

}  // namespace mezzo::encoder::fused
