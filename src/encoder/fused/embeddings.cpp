#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>

#include "encoder/fused/block.h"

namespace mezzo::encoder::fused {
namespace {

/// Whether this backward adds the gradient of `table` to an existing one, without showing it to others. Others are
/// torch::autograd::grad, which names its inputs, hooks of the tensor, and pre-hooks of its AccumulateGrad. A post-hook
/// may see a sparse gradient.
bool is_only_added(const at::Tensor& table) {
  if (!table.is_leaf() || !table.grad().defined() || !torch::autograd::impl::hooks(table).empty() ||
      !torch::autograd::get_current_graph_task_exec_info()->empty()) {
    return false;
  }
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(table);
  return accumulator == nullptr || accumulator->pre_hooks().empty();
}

/// The gradient of an embedding table from that of its rows, as they were looked up. On the CPU a
/// gradient that is there already gets only those rows added.
at::Tensor grad_table(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& rows) {
  if (rows.is_cpu() && is_only_added(table)) {
    const auto [numbers, places] = at::_unique(indices, /*sorted=*/true, /*return_inverse=*/true);
    auto sums = at::zeros({numbers.size(0), rows.size(1)}, rows.options().dtype(at::kFloat));
    ops_of(rows).add_rows_at(places, rows, sums);
    return at::_sparse_coo_tensor_unsafe(numbers.unsqueeze(0), sums.to(table.scalar_type()), table.sizes(), {},
                                         /*is_coalesced=*/true);
  }
  auto grad = at::zeros(table.sizes(), table.options().dtype(at::kFloat));
  ops_of(rows).add_rows_at(indices, rows, grad);
  return grad.to(table.scalar_type());
}

struct Embeddings : torch::autograd::Function<Embeddings> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& word,
                            const at::Tensor& position,
                            const at::Tensor& token_type,
                            const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias,
                            double eps,
                            const at::Tensor& ids,
                            const at::Tensor& positions,
                            const std::optional<at::Tensor>& types,
                            const DropoutSite& dropout,
                            bool is_differentiable) {
    const NoAutocast no_autocast;
    const auto token_types = types.value_or(at::Tensor());
    Normalised normalised;
    auto output = ops_of(word).embedding_layer_norm(word, position, token_type, ids, positions, token_types,
                                                    {norm_weight, norm_bias, eps}, dropout,
                                                    is_differentiable ? &normalised : nullptr);
    ctx->save_for_backward({word, position, token_type, norm_weight, norm_bias, ids, positions, token_types,
                            normalised.rows, normalised.rstd});
    keep(ctx, dropout);
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("embeddings");
    const NoAutocast no_autocast;
    const auto saved = ctx->get_saved_variables();
    const auto &word = saved[0], &position = saved[1], &token_type = saved[2], &norm_weight = saved[3],
               &norm_bias = saved[4], &ids = saved[5], &positions = saved[6], &token_types = saved[7];
    const auto found = ops_of(word).embedding_layer_norm_backward(grads[0].contiguous(), {saved[8], saved[9]},
                                                                  norm_weight, kept<DropoutSite>(ctx)->settings);
    variable_list result(11);
    if (ctx->needs_input_grad(0)) {
      result[0] = grad_table(word, ids, found.sum);
    }
    if (ctx->needs_input_grad(1)) {
      result[1] = grad_table(position, positions, found.sum);
    }
    if (ctx->needs_input_grad(2)) {
      result[2] = token_types.defined() ? grad_table(token_type, token_types, found.sum) : at::zeros_like(token_type);
      if (!token_types.defined()) {
        result[2].select(0, 0).copy_(found.sum.sum(0));
      }
    }
    result[3] = grad_vector(found.norm.weight, norm_weight);
    result[4] = grad_vector(found.norm.bias, norm_bias);
    return result;
  }
};

}  // namespace

at::Tensor embeddings(const at::Tensor& word,
                      const at::Tensor& position,
                      const at::Tensor& token_type,
                      const at::Tensor& ids,
                      const at::Tensor& positions,
                      const at::Tensor& token_types,
                      const LayerNormParams& norm,
                      const DropoutSite& dropout) {
  const auto types = token_types.defined() ? std::optional(token_types) : std::nullopt;  // nodes take none undefined
  return Embeddings::apply(word, position, token_type, norm.weight, norm.bias, norm.eps, ids, positions, types, dropout,
                           at::GradMode::is_enabled());
}

}  // namespace mezzo::encoder::fused
