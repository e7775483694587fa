#include <cmath>
#include <limits>

#include "kernels/cpu/update_blocks.h"

namespace mezzo::kernels::cpu {
namespace {

AdamConstants constants(const ParameterUpdate& update, const AdamSettings& settings, const HostFactors& factors) {
  const double step = count_step(update);
  const double bias1 = 1 - std::pow(settings.beta1, step), bias2 = 1 - std::pow(settings.beta2, step);
  return {.inv_scale = factors.inv_scale,
          .clip = factors.clip,
          .weight_decay = settings.decoupled ? 0.0f : static_cast<float>(update.weight_decay),
          .shrink = settings.decoupled ? static_cast<float>(1 - update.lr * update.weight_decay) : 1.0f,
          .mean_weight = static_cast<float>(1 - settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .square_weight = static_cast<float>(1 - settings.beta2),
          .step_size = static_cast<float>(update.lr / bias1),
          .root_bias = static_cast<float>(std::sqrt(bias2)),
          .eps = static_cast<float>(settings.eps),
          .least = flushes_denormals(settings) ? std::numeric_limits<float>::min() : 0.0f};
}

}  // namespace

void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& gradient_factors) {
  const HostFactors factors(gradient_factors);
  if (factors.skip) {
    return;
  }
  const ElementKernels& kernels = element_kernels();  // or an error, before a step is counted
  std::vector<AdamConstants> of_tensor;
  for (const ParameterUpdate& update : updates) {
    of_tensor.push_back(constants(update, settings, factors));
  }
  update_all(updates, [&](size_t tensor, float* param, const float* gradient, int64_t begin, int64_t count) {
    const auto slot = [&](size_t number) { return updates[tensor].slots[number].mutable_data_ptr<float>() + begin; };
    kernels.adam(param, gradient, slot(0), slot(1), settings.amsgrad ? slot(2) : nullptr, count, of_tensor[tensor]);
  });
}

}  // namespace mezzo::kernels::cpu
