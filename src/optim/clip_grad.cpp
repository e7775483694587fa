#include "mezzo/optim/clip_grad.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cstddef>

#include "kernels/device_scalars.h"
#include "scaling/gradient_pass.h"

namespace mezzo {
namespace {

GradientPass gradients_of(at::TensorList parameters, const char* function) {
  GradientPass pass;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) {
      continue;
    }
    TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, function, ": parameter ", i, " has a gradient of layout ",
                      gradient.layout(), "; only dense gradients can be clipped. Leave that parameter out.");
    pass.add(parameters[i]);
  }
  return pass;
}

}  // namespace

void clip_grad_value_(at::TensorList parameters, double clip_value) {
  TORCH_CHECK_VALUE(clip_value >= 0, "clip_grad_value_: clip_value must be at least 0, got ", clip_value, ".");
  const c10::NoGradGuard no_grad;
  gradients_of(parameters, "clip_grad_value_").clamp(clip_value);
}

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, double norm_type) {
  TORCH_CHECK_VALUE(max_norm >= 0, "clip_grad_norm_: max_norm must be at least 0, got ", max_norm, ".");
  TORCH_CHECK_VALUE(norm_type > 0, "clip_grad_norm_: norm_type must be above 0, got ", norm_type, ".");
  const c10::NoGradGuard no_grad;
  const auto pass = gradients_of(parameters, "clip_grad_norm_");
  if (pass.empty()) {
    return at::zeros({}, at::kFloat);
  }
  const auto total_norm = pass.norm(norm_type);
  pass.multiply(clip_factor(total_norm, max_norm));
  return total_norm;
}

}  // namespace mezzo
