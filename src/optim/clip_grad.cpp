#include "mezzo/optim/clip_grad.h"

#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <vector>

#include "kernels/gradient_groups.h"
#include "memory/device_copy.h"

namespace mezzo {

namespace {

GradientGroups gradients_of(at::TensorList parameters, const char* function) {
  GradientGroups groups;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) {
      continue;
    }
    TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, function, ": parameter ", i, " has a gradient of layout ",
                      gradient.layout(), "; only dense gradients can be clipped. Leave that parameter out.");
    groups.add(gradient);
  }
  return groups;
}

/// One for each gradient; none for those without elements, of which LibTorch refuses the largest magnitude.
at::Tensor norms_of(std::vector<at::Tensor> gradients, double norm_type, at::ScalarType dtype) {
  const auto options = gradients.front().options().dtype(dtype);
  std::erase_if(gradients, [](const at::Tensor& gradient) { return gradient.numel() == 0; });
  return gradients.empty() ? at::zeros({1}, options) : at::stack(at::_foreach_norm(gradients, norm_type, dtype));
}

}  // namespace

void clip_grad_value_(at::TensorList parameters, double clip_value) {
  TORCH_CHECK_VALUE(clip_value >= 0, "clip_grad_value_: clip_value must be at least 0, got ", clip_value, ".");
  const c10::NoGradGuard no_grad;
  for (const auto& group : gradients_of(parameters, "clip_grad_value_")) {
    at::_foreach_clamp_min_(group.gradients, -clip_value);
    at::_foreach_clamp_max_(group.gradients, clip_value);
  }
}

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, double norm_type) {
  TORCH_CHECK_VALUE(max_norm >= 0, "clip_grad_norm_: max_norm must be at least 0, got ", max_norm, ".");
  TORCH_CHECK_VALUE(norm_type > 0, "clip_grad_norm_: norm_type must be above 0, got ", norm_type, ".");
  const c10::NoGradGuard no_grad;
  const GradientGroups groups = gradients_of(parameters, "clip_grad_norm_");
  if (groups.empty()) {
    return at::zeros({}, at::kFloat);
  }

  const auto device = groups.begin()->device;
  std::vector<at::Tensor> norms;
  for (const auto& group : groups) {
    const auto dtype = group.dtype == at::kDouble ? at::kDouble : at::kFloat;
    norms.push_back(copy_to(norms_of(group.gradients, norm_type, dtype), device));
  }
  const auto total_norm = at::linalg_vector_norm(at::cat(norms), norm_type);
  const auto wanted = (total_norm + 1e-6).reciprocal() * max_norm;  // as Python divides a number by a tensor
  const auto factor = at::clamp(wanted, /*min=*/std::nullopt, /*max=*/1.0);
  for (const auto& group : groups) {
    at::_foreach_mul_(group.gradients, copy_to(factor, group.device));
  }
  return total_norm;
}

}  // namespace mezzo
