#include "encoder/dropout.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "encoder/block_ops.h"
#include "kernels/dtypes.h"
#include "kernels/operator.h"

namespace mezzo::encoder {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

template <bool kByDevice>
at::Tensor dropout_kernel(
    const at::Tensor& x, double p, int64_t seed, int64_t step, int64_t site, const OptionalTensor& step_offset) {
  const auto mask = DropoutSite::of(p, seed, step, site, step_offset, x.device());
  const BlockOps* ops = kByDevice ? block_ops(x.device()) : nullptr;
  return ops != nullptr && has_kernel(x.scalar_type()) ? ops->dropout(x.contiguous(), mask)
                                                       : reference::dropout(x, mask).contiguous();
}

at::Tensor dropout_autograd(
    const at::Tensor& x, double p, int64_t seed, int64_t step, int64_t site, const OptionalTensor& step_offset);

const kernels::Operator<decltype(dropout_autograd)> dropout_op(
    "dropout(Tensor x, float p, int seed, int step, int site, Tensor? step_offset=None) -> Tensor",
    kernels::kernels_of_devices<&dropout_kernel<true>>(),
    kernels::kernel<&dropout_kernel<false>>(c10::DispatchKey::CompositeExplicitAutograd),
    kernels::kernel<&dropout_autograd>(c10::DispatchKey::Autograd),
    kernels::meta_like_first());

/// Dropout is linear and its own transpose, so backward is forward applied to the gradient.
struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& x,
                            double p,
                            int64_t seed,
                            int64_t step,
                            int64_t site,
                            const OptionalTensor& step_offset) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["seed"] = seed;
    ctx->saved_data["step"] = step;
    ctx->saved_data["site"] = site;
    ctx->saved_data["step_offset"] = step_offset;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return dropout_op(x, p, seed, step, site, step_offset);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
    auto& saved = ctx->saved_data;
    return {dropout_op(grad[0], saved["p"].toDouble(), saved["seed"].toInt(), saved["step"].toInt(),
                       saved["site"].toInt(), saved["step_offset"].toOptional<at::Tensor>()),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

at::Tensor dropout_autograd(
    const at::Tensor& x, double p, int64_t seed, int64_t step, int64_t site, const OptionalTensor& step_offset) {
  return DropoutFunction::apply(x, p, seed, step, site, step_offset);
}

}  // namespace

DropoutSite DropoutSite::of(double p,
                            int64_t seed,
                            int64_t step,
                            int64_t site,
                            const std::optional<at::Tensor>& step_offset,
                            const at::Device& device) {
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "dropout: p must be in [0, 1), got ", p);
  DropoutSite mask{p, {static_cast<uint64_t>(seed), static_cast<uint32_t>(step), static_cast<uint32_t>(site)}};
  if (step_offset && step_offset->defined()) {
    const at::Tensor& offset = *step_offset;
    TORCH_CHECK_VALUE(
        offset.dim() == 0 && offset.scalar_type() == at::kLong && (offset.is_cpu() || offset.device() == device),
        "dropout: step_offset must be a 0-dim int64 tensor on the CPU or on ", device, ", got ", offset.toString(), " ",
        offset.sizes(), " on ", offset.device());
    if (offset.is_cpu()) {
      mask.key.step += static_cast<uint32_t>(offset.item<int64_t>());
    } else {
      mask.step_offset = offset;
    }
  }
  return mask;
}

at::Tensor dropout(const at::Tensor& x, const DropoutSite& site) {
  if (site.p == 0) {
    return x;
  }
  return dropout_op(x, site.p, static_cast<int64_t>(site.key.seed), int64_t{site.key.step}, int64_t{site.key.site},
                    kernels::if_defined(site.step_offset));
}

}  // namespace mezzo::encoder
