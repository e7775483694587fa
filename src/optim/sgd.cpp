#include "mezzo/optim/sgd.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/where.h>

#include "kernels/optimizer_kernels.h"

namespace mezzo {
namespace {

/// `param` -= lr * gradient, for the rows that the gradient has.
void add_sparse(const ParameterUpdate& update, bool maximize, const GradientFactors& factors) {
  const at::Tensor& gradient = update.gradient;
  const double lr = maximize ? update.lr : -update.lr;
  const auto given = gradient._values();
  auto values = given;
  for (const at::Tensor& factor : {factors.inv_scale, factors.clip, factors.lr}) {
    values = factor.defined() ? values * factor.to(values.scalar_type()) : values;
  }
  if (factors.found_inf.defined()) {
    values = at::where(factors.found_inf != 0, at::zeros_like(values), values);
  }
  // Without a check: the indices are the gradient's.
  const bool is_plain = values.is_same(given);
  update.param.add_(is_plain ? gradient : at::_sparse_coo_tensor_unsafe(gradient._indices(), values, gradient.sizes()),
                    lr);
}

}  // namespace

void SGD::update(const torch::optim::OptimizerOptions& options,
                 const std::vector<ParameterUpdate>& updates,
                 const GradientFactors& factors) {
  const auto& of_torch = static_cast<const torch::optim::SGDOptions&>(options);
  std::vector<ParameterUpdate> dense;
  for (const ParameterUpdate& update : updates) {
    const auto dtype = update.param.scalar_type();
    const bool is_plain = update.gradient.is_sparse() && of_torch.momentum() == 0 && update.weight_decay == 0 &&
                          (dtype == at::kFloat || dtype == at::kDouble) && update.gradient.scalar_type() == dtype &&
                          !update.half_copy.defined();
    if (is_plain) {
      add_sparse(update, maximizes(), factors);
    } else {
      dense.push_back(update);
      dense.back().gradient = update.gradient.is_sparse() ? update.gradient.to_dense() : update.gradient;
    }
  }
  kernels::sgd(dense,
               {.momentum = of_torch.momentum(),
                .nesterov = of_torch.nesterov(),
                .dampening = of_torch.dampening(),
                .maximize = maximizes()},
               factors);
}

}  // namespace mezzo
