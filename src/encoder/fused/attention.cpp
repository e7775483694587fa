#include <utility>

#include "encoder/fused/block.h"
#include "encoder/fused/nodes.h"

namespace mezzo::encoder::fused {
namespace {

struct Attention : torch::autograd::Function<Attention> {
  struct Settings {
    SequenceLayoutPtr layout;
    AttentionDescription description;  ///< without its tables, which are inputs
    bool is_differentiable;
  };

  enum Input { kQuery, kKey, kValue, kQueryBias, kKeyBias, kValueBias, kRelativeKey, kRelativeQuery, kInputs };
  enum Saved { kOutput = kInputs, kLogSumExp };

  static AttentionArguments arguments_of(at::TensorList tensors, const Settings& settings) {
    AttentionArguments arguments{tensors[kQuery], tensors[kKey],
                                 tensors[kValue], {tensors[kQueryBias], tensors[kKeyBias], tensors[kValueBias]},
                                 settings.layout, settings.description};
    const auto table = [&](Input input) {
      return tensors[input].defined() ? tensors[input].to(tensors[kQuery].scalar_type()).contiguous() : at::Tensor();
    };
    arguments.description.relative.key = table(kRelativeKey);
    arguments.description.relative.query = table(kRelativeQuery);
    return arguments;
  }

  static at::Tensor forward(AutogradContext* ctx, at::TensorList given, const Settings& settings) {
    const NoAutocast no_autocast;
    const auto inputs = inputs_of(given);
    at::Tensor log_sum_exp;
    auto output =
        ops_of(inputs[kQuery])
            .packed_attention(arguments_of(inputs, settings), settings.is_differentiable ? &log_sum_exp : nullptr);
    if (settings.is_differentiable) {
      variable_list saved = inputs;
      saved.insert(saved.end(), {output, log_sum_exp});
      ctx->save_for_backward(std::move(saved));
      keep(ctx, settings);
    }
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const Backward<Settings> node(ctx, "attention");
    const auto saved = ctx->get_saved_variables();
    const auto grad = ops_of(saved[kQuery])
                          .packed_attention_backward(arguments_of(saved, node.settings), saved[kOutput],
                                                     saved[kLogSumExp], grads[0].contiguous());
    const auto of_table = [&](const at::Tensor& sums, Input table) {
      return sums.defined() ? sums.to(saved[table].scalar_type()) : sums;
    };
    return {grad.query,
            grad.key,
            grad.value,
            grad_if_defined(grad.biases.query, saved[kQueryBias]),
            grad_if_defined(grad.biases.key, saved[kKeyBias]),
            grad_if_defined(grad.biases.value, saved[kValueBias]),
            of_table(grad.relative_key, kRelativeKey),
            of_table(grad.relative_query, kRelativeQuery),
            {}};
  }
};

}  // namespace

at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            const AttentionBiases& biases,
                            const SequenceLayoutPtr& layout,
                            const AttentionDescription& description) {
  const std::vector<at::Tensor> inputs{
      query, key, value, biases.query, biases.key, biases.value, description.relative.key, description.relative.query};
  Attention::Settings settings{layout, description, at::GradMode::is_enabled()};
  settings.description.relative = {{}, {}, description.relative.rows};
  return apply_node<Attention>(inputs, settings);
}

}  // namespace mezzo::encoder::fused
