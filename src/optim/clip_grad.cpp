#include "mezzo/optim/clip_grad.h"

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

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm) {
  TORCH_CHECK_VALUE(max_norm >= 0, "clip_grad_norm_: max_norm must be at least 0, got ", max_norm, ".");
  const c10::NoGradGuard no_grad;
  GradientGroups groups;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) {
      continue;
    }
    TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "clip_grad_norm_: parameter ", i, " has a gradient of layout ",
                      gradient.layout(), "; only dense gradients can be clipped. Leave that parameter out.");
    groups.add(gradient);
  }
  if (groups.empty()) {
    return at::zeros({}, at::kFloat);
  }

  const auto device = groups.begin()->device;
  std::vector<at::Tensor> norms;
  for (const auto& group : groups) {
    const auto dtype = group.dtype == at::kDouble ? at::kDouble : at::kFloat;
    norms.push_back(copy_to(at::stack(at::_foreach_norm(group.gradients, 2, dtype)), device));
  }
  const auto total_norm = at::linalg_vector_norm(at::cat(norms), 2);
  const auto wanted = (total_norm + 1e-6).reciprocal() * max_norm;  // as Python divides a number by a tensor
  const auto factor = at::clamp(wanted, /*min=*/std::nullopt, /*max=*/1.0);
  for (const auto& group : groups) {
    at::_foreach_mul_(group.gradients, copy_to(factor, group.device));
  }
  return total_norm;
}

}  // namespace mezzo
