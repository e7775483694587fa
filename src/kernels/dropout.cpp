#include "kernels/dropout.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/device_kernels.h"
#include "kernels/dtypes.h"
#include "kernels/operator.h"

namespace mezzo::kernels {
namespace {

using DropoutKernel = at::Tensor(const at::Tensor&, double, const RandomKey&);

template <DropoutKernel& kKernel>
at::Tensor dropout_kernel(const at::Tensor& x, double p, int64_t seed, int64_t step, int64_t site) {
  const auto key = DropoutSite::of(p, seed, step, site).key;
  return has_kernel(x.scalar_type()) ? kKernel(x.contiguous(), p, key) : reference::dropout(x, p, key);
}

at::Tensor dropout_composite(const at::Tensor& x, double p, int64_t seed, int64_t step, int64_t site) {
  return reference::dropout(x, p, DropoutSite::of(p, seed, step, site).key).contiguous();
}

at::Tensor dropout_autograd(const at::Tensor& x, double p, int64_t seed, int64_t step, int64_t site);

const Operator<decltype(dropout_autograd)> dropout_op(
    "dropout(Tensor x, float p, int seed, int step, int site) -> Tensor",
    kernel<&dropout_kernel<cpu::dropout>>(c10::DispatchKey::CPU),
    accelerator_kernels<&dropout_kernel<device::dropout>>(),
    kernel<&dropout_composite>(c10::DispatchKey::CompositeExplicitAutograd),
    kernel<&dropout_autograd>(c10::DispatchKey::Autograd),
    meta_like_first());

/// Dropout is linear and its own transpose, so backward is forward applied to the gradient.
struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* ctx, const at::Tensor& x, double p, int64_t seed, int64_t step, int64_t site) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["seed"] = seed;
    ctx->saved_data["step"] = step;
    ctx->saved_data["site"] = site;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return dropout_op(x, p, seed, step, site);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
    auto& saved = ctx->saved_data;
    return {
        dropout_op(grad[0], saved["p"].toDouble(), saved["seed"].toInt(), saved["step"].toInt(), saved["site"].toInt()),
        at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor dropout_autograd(const at::Tensor& x, double p, int64_t seed, int64_t step, int64_t site) {
  return DropoutFunction::apply(x, p, seed, step, site);
}

}  // namespace

DropoutSite DropoutSite::of(double p, int64_t seed, int64_t step, int64_t site) {
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "dropout: p must be in [0, 1), got ", p);
  return {p, {static_cast<uint64_t>(seed), static_cast<uint32_t>(step), static_cast<uint32_t>(site)}};
}

at::Tensor dropout(const at::Tensor& x, double p, const RandomKey& key) {
  if (p == 0) {
    return x;
  }
  return dropout_op(x, p, static_cast<int64_t>(key.seed), int64_t{key.step}, int64_t{key.site});
}

}  // namespace mezzo::kernels
