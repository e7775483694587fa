#include "kernels/dropout.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mezzo::kernels {
namespace {

at::Tensor apply_mask(const at::Tensor& x, double p, const RandomKey& key) {
  const auto dtype = x.scalar_type();
  const bool has_kernel = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  return x.is_cpu() && has_kernel ? cpu::dropout(x.contiguous(), p, key) : reference::dropout(x, p, key);
}

/// Dropout is linear and its own transpose, so backward is forward applied to the gradient.
struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* ctx, const at::Tensor& x, double p, int64_t seed, int64_t step, int64_t site) {
    ctx->saved_data["p"] = p;
    ctx->saved_data["seed"] = seed;
    ctx->saved_data["step"] = step;
    ctx->saved_data["site"] = site;
    const RandomKey key{static_cast<uint64_t>(seed), static_cast<uint32_t>(step), static_cast<uint32_t>(site)};
    return apply_mask(x, p, key);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
    auto& saved = ctx->saved_data;
    return {apply(grad[0], saved["p"].toDouble(), saved["seed"].toInt(), saved["step"].toInt(), saved["site"].toInt()),
            at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, const RandomKey& key) {
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "dropout: p must be in [0, 1), got ", p);
  if (p == 0) {
    return x;
  }
  return DropoutFunction::apply(x, p, static_cast<int64_t>(key.seed), int64_t{key.step}, int64_t{key.site});
}

}  // namespace mezzo::kernels
