#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include "bindings.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/custom_function.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What forward and backward saw: autocast enabled, autocast dtype, dtype of the first
/// argument, of the product.
using Sight = std::tuple<bool, at::ScalarType, at::ScalarType, at::ScalarType>;
std::vector<Sight> sights;

void look(const at::Tensor& argument, const at::Tensor& product) {
  sights.emplace_back(at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU),
                      argument.scalar_type(), product.scalar_type());
}

struct MatmulFunction : torch::autograd::Function<MatmulFunction> {
  static at::Tensor forward(AutogradContext* ctx,
                            const at::Tensor& a,
                            const at::Tensor& b,
                            std::optional<at::ScalarType> cast_inputs) {
    return mezzo::custom_fwd(
        ctx, at::kCPU, cast_inputs,
        [&](const at::Tensor& x, const at::Tensor& y) {
          ctx->save_for_backward({x, y});
          auto product = x.mm(y);
          look(x, product);
          return product;
        },
        a, b);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return mezzo::custom_bwd(ctx, at::kCPU, [&]() -> variable_list {
      const auto saved = ctx->get_saved_variables();
      auto grad_a = grads[0].mm(saved[1].t()), grad_b = saved[0].t().mm(grads[0]);
      look(grads[0], grad_a);
      return {grad_a, grad_b, at::Tensor()};
    });
  }
};

}  // namespace

void bind_custom_function(py::module_& m) {
  m.def("custom_mm", [](const at::Tensor& a, const at::Tensor& b, std::optional<at::ScalarType> cast_inputs) {
    return MatmulFunction::apply(a, b, cast_inputs);
  });
  m.def("custom_mm_sights", [] { return std::exchange(sights, {}); });
}
