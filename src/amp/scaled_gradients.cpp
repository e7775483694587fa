#include "amp/scaled_gradients.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <vector>

#include "kernels/device_scalars.h"

namespace mezzo {
namespace {

void check_gradient(const AmpOptimizer& optimizer, size_t index, const at::Tensor& gradient, bool half_allowed) {
  const auto dtype = gradient.scalar_type();
  TORCH_CHECK_VALUE(at::isFloatingType(dtype), "GradScaler: ", optimizer.parameter_name(index), " of ",
                    optimizer.name(), " has a gradient of dtype ", dtype, " and shape ", gradient.sizes(),
                    "; only floating-point gradients can be unscaled. Give that parameter an optimizer that the scaler "
                    "does not see.");
  TORCH_CHECK_VALUE(half_allowed || dtype != at::kHalf, "GradScaler: ", optimizer.parameter_name(index), " of ",
                    optimizer.name(), " has a float16 gradient of shape ", gradient.sizes(),
                    ", too coarse to be unscaled in place. Keep parameters in float32 and run forward under "
                    "AutocastGuard, or use an optimizer with float32 master weights.");
}

/// Entries of equal index are summed, which may overflow: what comes out is to be checked.
void coalesce(at::Tensor& gradient) {
  if (gradient.is_sparse() && gradient.scalar_type() == at::kHalf) {
    gradient = gradient.coalesce();
  }
}

GradientPass gradients_of(AmpOptimizer& optimizer, Unscaled unscaled) {
  const c10::NoGradGuard no_grad;
  const bool half_allowed = unscaled == Unscaled::kInFloat32 || optimizer.allows_half_gradients();
  GradientPass pass;
  std::vector<at::Tensor> owners;
  size_t index = 0;
  optimizer.visit_parameters([&](at::Tensor& parameter) {
    if (parameter.grad().defined()) {
      const auto master = unscaled == Unscaled::kInPlace ? optimizer.master_of(index) : at::Tensor();
      check_gradient(optimizer, index, parameter.grad(), half_allowed || master.defined());
      pass.add(parameter, master);
      owners.push_back(parameter);
    }
    ++index;
  });
  for (const at::Tensor& owner : owners) {
    coalesce(owner.mutable_grad());
  }
  return pass;
}

}  // namespace

at::Tensor ScaledGradients::unscale() {
  auto pass = gradients_of(optimizer_, Unscaled::kInPlace);
  if (!agree_) {
    return pass.unscale(scale_);
  }
  auto found_inf = agreed(pass.check(scale_, Unscaled::kInPlace));
  pass.unscale(scale_);
  return found_inf;
}

at::Tensor ScaledGradients::check() {
  const auto own = scale_.reproduce_pytorch ? std::nullopt : optimizer_.check_gradients(scale_.value);
  return agreed(own ? *own : gradients_of(optimizer_, Unscaled::kInFloat32).check(scale_, Unscaled::kInFloat32));
}

at::Tensor ScaledGradients::check_again(const at::Tensor& found_inf) {
  const auto later = agree_ ? optimizer_.check_gradients(std::nullopt) : std::nullopt;
  return later ? agreed(either(found_inf, copy_to(*later, scale_.value.device()))) : found_inf;
}

/// The verdict of all processes, where this one came to `found_inf`.
at::Tensor ScaledGradients::agreed(const at::Tensor& found_inf) const {
  if (!agree_) {
    return found_inf;
  }
  const c10::NoGradGuard no_grad;
  const bool has_gradients = found_inf.defined();
  const auto options = scale_.value.options();
  const auto no = at::zeros({}, options);
  auto flags = has_gradients ? at::stack({found_inf, at::ones({}, options)}) : at::stack({no, no});
  agree_(flags);
  if (!has_gradients && flags[1].item<float>() == 0.0f) {  // waits for the device in this rare case alone
    return {};
  }
  return flags[0];
}

}  // namespace mezzo
