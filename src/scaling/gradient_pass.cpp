#include "scaling/gradient_pass.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <limits>
#include <utility>

#include "kernels/device_scalars.h"
#include "kernels/grouped.h"
#include "kernels/reference/gradient_norms.h"

namespace mezzo {
/// As kernels need them: of a sparse gradient, the stored values.
at::Tensor GradientPass::Gradient::values() const {
  const at::Tensor& gradient = owner.grad();
  return gradient.is_sparse() ? gradient._values() : gradient;
}

void GradientPass::add(at::Tensor owner, at::Tensor master) {
  gradients_.push_back({std::move(owner), std::move(master)});
}

at::Tensor GradientPass::check(const ScaleOfGradients& scale, Unscaled unscaled) const {
  const c10::NoGradGuard no_grad;
  at::Tensor found_inf;
  for (const auto& group : grouped(gradients_, [](const Gradient& each) { return each.owner.grad().device(); })) {
    kernels::GradientsToCheck gradients;
    for (const Gradient& gradient : group) {
      const bool keeps_dtype = unscaled == Unscaled::kInPlace && !gradient.master.defined();
      (keeps_dtype ? gradients.in_place : gradients.in_float32).push_back(gradient.values());
    }
    const auto here = copy_to(scale.value, group.front().owner.grad().device());
    const auto found = kernels::check_gradients(gradients, {here, scale.may_be_below_one, scale.reproduce_pytorch});
    found_inf = either(found_inf, copy_to(found, scale.value.device()));
  }
  return found_inf;
}

at::Tensor GradientPass::unscale(const ScaleOfGradients& scale) {
  const c10::NoGradGuard no_grad;
  at::Tensor found_inf;
  const auto devices = grouped(gradients_, [](const Gradient& each) { return each.owner.grad().device(); });
  std::vector<kernels::GradientsToUnscale> of_devices(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) {
    for (const Gradient& gradient : devices[i]) {
      kernels::GradientsToUnscale& gradients = of_devices[i];
      const auto& [owner, master] = gradient;
      if (!master.defined()) {
        gradients.in_place.push_back(gradient.values());
      } else if (owner.grad().is_sparse()) {
        master.mutable_grad() = owner.grad().to(at::kFloat);
        gradients.in_place.push_back(master.grad()._values());
      } else {
        master.mutable_grad() = at::empty_like(owner.grad(), owner.grad().options().dtype(at::kFloat));
        gradients.halves.push_back(owner.grad());
        gradients.into.push_back(master.grad());
      }
    }
  }
  for (const kernels::GradientsToUnscale& gradients : of_devices) {
    const auto& first = gradients.in_place.empty() ? gradients.into.front() : gradients.in_place.front();
    const auto here = copy_to(scale.value, first.device());
    const auto found = kernels::unscale_gradients(gradients, {here, scale.may_be_below_one, scale.reproduce_pytorch});
    found_inf = either(found_inf, copy_to(found, scale.value.device()));
  }
  for (auto& [owner, master] : gradients_) {
    if (master.defined()) {
      owner.mutable_grad().reset();
      owner = std::exchange(master, {});
    }
  }
  return found_inf;
}

kernels::GradientSummary GradientPass::measure(const at::Tensor& scale, double max_norm) const {
  if (empty()) {
    return {};
  }
  std::vector<at::Tensor> gradients;
  for (const Gradient& gradient : gradients_) {
    gradients.push_back(gradient.owner.grad());
  }
  const auto device = scale.defined() ? scale.device() : gradients.front().device();
  std::vector<kernels::GradientSummary> summaries;
  for (const auto& group : grouped(std::move(gradients), device_of)) {  // of any dtypes: its kernel reads them all
    auto summary = kernels::summarize_gradients(group, copy_to(scale, group.front().device()), max_norm);
    for (at::Tensor* number :
         {&summary.norm, &summary.found_inf, &summary.sum_of_squares, &summary.inv_scale, &summary.clip}) {
      *number = copy_to(*number, device);
    }
    summaries.push_back(std::move(summary));
  }
  kernels::GradientSummary all = summaries.front();
  if (summaries.size() > 1) {
    std::vector<at::Tensor> norms, sums;
    for (const auto& summary : summaries) {
      norms.push_back(summary.norm.reshape({1}));
      sums.push_back(summary.sum_of_squares);
      all.found_inf = either(all.found_inf, summary.found_inf);
    }
    all.norm = at::linalg_vector_norm(at::cat(norms));
    all.sum_of_squares = at::stack(sums).sum();
    all.clip = clip_factor(all.norm, max_norm);
  }
  return all;
}

}  // namespace mezzo
