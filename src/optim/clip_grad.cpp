#include "mezzo/optim/clip_grad.h"

#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "kernels/device_scalars.h"
#include "kernels/grouped.h"
#include "kernels/reference/gradient_norms.h"

namespace mezzo {
namespace {

std::vector<at::Tensor> gradients_of(at::TensorList parameters, const char* function) {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) {
      continue;
    }
    TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, function, ": parameter ", i, " has a gradient of layout ",
                      gradient.layout(), "; only dense gradients can be clipped. Leave that parameter out.");
    gradients.push_back(gradient);
  }
  return gradients;
}

std::vector<std::vector<at::Tensor>> groups(std::vector<at::Tensor> tensors) {
  return grouped(std::move(tensors), device_and_dtype_of);
}

at::Tensor total_norm_of(std::vector<at::Tensor> tensors,
                         double norm_type,
                         bool error_if_nonfinite,
                         const char* function) {
  TORCH_CHECK_VALUE(norm_type > 0, function, ": norm_type must be above 0, got ", norm_type, ".");
  if (tensors.empty()) {
    return at::zeros({}, at::kFloat);
  }
  const c10::Device device = tensors.front().device();
  std::vector<at::Tensor> norms;
  for (const auto& group : groups(std::move(tensors))) {
    const auto dtype = kernels::reference::float32_or_wider(group.front().scalar_type());
    norms.push_back(copy_to(kernels::reference::gradient_norms(group, norm_type, dtype), device));
  }
  auto total_norm = at::linalg_vector_norm(at::cat(norms), norm_type);
  TORCH_CHECK(!error_if_nonfinite || std::isfinite(total_norm.item<double>()), function, ": the total norm is ",
              total_norm.item<double>(), ". Find the gradient that is not finite, or pass error_if_nonfinite=false.");
  return total_norm;
}

}  // namespace

at::Tensor get_total_norm(at::TensorList tensors, double norm_type, bool error_if_nonfinite) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_VALUE(tensors[i].layout() == at::kStrided, "get_total_norm: tensor ", i, " has layout ",
                      tensors[i].layout(), "; only dense tensors have a total norm. Leave that tensor out.");
  }
  return total_norm_of(tensors.vec(), norm_type, error_if_nonfinite, "get_total_norm");
}

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm, double norm_type, bool error_if_nonfinite) {
  TORCH_CHECK_VALUE(max_norm >= 0, "clip_grad_norm_: max_norm must be at least 0, got ", max_norm, ".");
  const c10::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters, "clip_grad_norm_");
  auto total_norm = total_norm_of(gradients, norm_type, error_if_nonfinite, "clip_grad_norm_");
  const auto factor = clip_factor(total_norm, max_norm);
  for (const auto& group : groups(gradients)) {
    at::_foreach_mul_(group, copy_to(factor, group.front().device()));
  }
  return total_norm;
}

void clip_grad_value_(at::TensorList parameters, double clip_value) {
  TORCH_CHECK_VALUE(clip_value >= 0, "clip_grad_value_: clip_value must be at least 0, got ", clip_value, ".");
  const c10::NoGradGuard no_grad;
  for (const auto& group : groups(gradients_of(parameters, "clip_grad_value_"))) {
    at::_foreach_clamp_min_(group, -clip_value);
    at::_foreach_clamp_max_(group, clip_value);
  }
}

}  // namespace mezzo
