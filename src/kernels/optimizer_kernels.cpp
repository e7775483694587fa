#include "kernels/optimizer_kernels.h"

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/is_half.h"

namespace mezzo::kernels {
namespace {

/// Keeps the draws of rounding apart from those of dropout under the same seed.
constexpr uint64_t kRoundingStream = 0x5B8F3C2E9D6A1705;

bool has_cpu_kernel(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

bool has_cpu_kernel(const ParameterUpdate& update) {
  const at::Tensor& shadow = update.shadow;
  const bool shadow_fits =
      !shadow.defined() || (shadow.is_cpu() && shadow.is_contiguous() && is_half(shadow.scalar_type()));
  return update.param.is_cpu() && update.param.is_contiguous() && has_cpu_kernel(update.param.scalar_type()) &&
         has_cpu_kernel(update.gradient.scalar_type()) && shadow_fits;
}

template <class Settings>
using KernelOf = void (*)(const ParameterUpdates&, const Settings&, const GradientFactors&);

template <class Settings>
void dispatch(const ParameterUpdates& updates,
              const Settings& settings,
              const GradientFactors& factors,
              KernelOf<Settings> cpu_kernel,
              KernelOf<Settings> reference_kernel) {
  ParameterUpdates fast, others;
  for (const ParameterUpdate& update : updates) {
    auto& chosen = has_cpu_kernel(update) ? fast : others;
    chosen.push_back(update);
    chosen.back().gradient = update.gradient.contiguous();
  }
  if (!fast.empty()) {
    cpu_kernel(fast, settings, factors);
  }
  if (!others.empty()) {
    reference_kernel(others, settings, factors);
  }
  for (const ParameterUpdate& update : fast) {  // as in-place operations do, for autograd and caches of casts
    update.param.unsafeGetTensorImpl()->bump_version();
    if (update.shadow.defined()) {
      update.shadow.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace

void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors) {
  dispatch(updates, settings, factors, cpu::adam, reference::adam);
}

void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors) {
  dispatch(updates, settings, factors, cpu::sgd, reference::sgd);
}

void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& factors) {
  dispatch(updates, settings, factors, cpu::lamb, reference::lamb);
}

GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients, const at::Tensor& inv_scale) {
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.is_cpu() || !has_cpu_kernel(gradient.scalar_type())) {
      return reference::summarize_gradients(gradients, inv_scale);
    }
    contiguous.push_back(gradient.contiguous());
  }
  return cpu::summarize_gradients(contiguous, inv_scale);
}

bool flushes_denormals(const AdamSettings& settings) {
  constexpr double kSmallest = std::numeric_limits<float>::min(), kHalfUlp = 0x1p-25;
  return settings.eps * kHalfUlp >= std::sqrt(kSmallest / (1 - settings.beta2));
}

uint64_t rounding_key_seed(const ParameterUpdate& update) { return *update.rounding_seed ^ kRoundingStream; }

}  // namespace mezzo::kernels
