#include "encoder/fused/block.h"
#include "kernels/operator.h"

namespace mezzo::encoder::fused {
namespace {

struct FrozenLinear : torch::autograd::Function<FrozenLinear> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    const NoAutocast no_autocast;
    auto output = matrix_product(x, weight.t());
    if (bias) output.add_(*bias);
    ctx->save_for_backward({weight});
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    check_once_differentiable("linear layer");
    const NoAutocast no_autocast;
    return {matrix_product(grads[0].contiguous(), ctx->get_saved_variables()[0]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor frozen_linear(const at::Tensor& x, const LinearParams& params) {
  const auto dtype = compute_dtype(x);
  const Weight weight(params, dtype, /*may_be_int8=*/false);
  return FrozenLinear::apply(x.to(dtype).contiguous(), weight.value, kernels::if_defined(params.bias));
}

}  // namespace mezzo::encoder::fused
