#include "amp/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "amp/policy_region.h"
#include "kernels/dtypes.h"
#include "kernels/operator.h"
#include "kernels/per_device.h"
#include "mezzo/amp/finite_tracer.h"

namespace mezzo {
namespace {

PerDevice<const CrossEntropyKernels*>& table() {
  static PerDevice<const CrossEntropyKernels*> table(&CudaLibrary::cross_entropy);
  return table;
}

/// nullptr if there are none for these arguments, or single operations shall be seen.
const CrossEntropyKernels* kernels_for(const at::Tensor& logits, const at::Tensor& target) {
  const auto type = logits.device().type();
  const bool fits = logits.dim() == 2 && target.dim() == 1 && target.size(0) == logits.size(0) &&
                    target.scalar_type() == at::kLong && target.device() == logits.device() &&
                    has_kernel(logits.scalar_type());
  return fits && !PolicyRegion::has_policy(type) && !FiniteTracer::is_active() ? table().of(logits.device()) : nullptr;
}

/// The gradient in operations that have one themselves.
at::Tensor differentiable_gradient(const CrossEntropyOf& of, const at::Tensor& grad) {
  const auto probabilities = at::softmax(of.logits.to(at::kFloat), 1);
  const auto classes = at::arange(of.logits.size(1), of.target.options());
  const auto counts = of.target.ne(of.ignore_index);
  const auto factors = at::where(counts, of.reduction == at::Reduction::Mean ? grad / counts.sum() : grad, 0);
  const auto is_target = classes.eq(of.target.unsqueeze(1)).to(at::kFloat);
  return ((probabilities - is_target) * factors.unsqueeze(1)).to(of.logits.scalar_type());
}

struct CrossEntropyNode : torch::autograd::Function<CrossEntropyNode> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& logits,
                            const CrossEntropyKernels* kernels,
                            const at::Tensor& target,
                            int64_t reduction,
                            int64_t ignore_index) {
    const auto result = kernels->forward({logits.contiguous(), target.contiguous(), reduction, ignore_index});
    ctx->save_for_backward({logits, target, result.largest, result.log_sum, result.count});
    ctx->saved_data["reduction"] = reduction;
    ctx->saved_data["ignore_index"] = ignore_index;
    return result.loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const CrossEntropyOf of{saved[0].contiguous(), saved[1].contiguous(), ctx->saved_data["reduction"].toInt(),
                            ctx->saved_data["ignore_index"].toInt()};
    const auto grad = grads[0].contiguous();
    const CrossEntropyKernels* const kernels = at::GradMode::is_enabled() ? nullptr : kernels_for(of.logits, of.target);
    return {
        kernels == nullptr
            ? differentiable_gradient(of, grad)
            : kernels->backward(of, {.loss = {}, .largest = saved[2], .log_sum = saved[3], .count = saved[4]}, grad),
        {},
        {},
        {},
        {}};
  }
};

at::Tensor in_single_operations(const at::Tensor& logits,
                                const at::Tensor& target,
                                int64_t reduction,
                                int64_t ignore_index) {
  const auto dtype = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::cross_entropy_loss(logits.to(dtype), target, /*weight=*/{}, reduction, ignore_index);
}

at::Tensor choose(const at::Tensor& logits, const at::Tensor& target, int64_t reduction, int64_t ignore_index) {
  const CrossEntropyKernels* const kernels = kernels_for(logits, target);
  return kernels != nullptr ? CrossEntropyNode::apply(logits, kernels, target, reduction, ignore_index)
                            : in_single_operations(logits, target, reduction, ignore_index);
}

const kernels::Operator<decltype(choose)> cross_entropy_op(
    "cross_entropy(Tensor logits, Tensor target, int reduction, int ignore_index) -> Tensor",
    kernels::choosing_kernels<&choose>(),
    kernels::kernel<&in_single_operations>(c10::DispatchKey::CompositeImplicitAutograd));

}  // namespace

at::Tensor cross_entropy_of_labels(const at::Tensor& logits,
                                   const at::Tensor& target,
                                   int64_t reduction,
                                   int64_t ignore_index) {
  return cross_entropy_op(logits, target, reduction, ignore_index);
}

void set_cross_entropy_kernels(c10::DeviceType device_type, const CrossEntropyKernels* kernels) {
  table().set(device_type, kernels);
}

}  // namespace mezzo
