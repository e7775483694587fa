#include <limits>

#include "kernels/cpu/update_blocks.h"

namespace mezzo::kernels::cpu {

void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& gradient_factors) {
  const HostFactors factors(gradient_factors);
  if (factors.skip) {
    return;
  }
  const ElementKernels& kernels = element_kernels();  // or an error, before a step is counted
  for (const ParameterUpdate& update : updates) {
    if (update.step.defined()) {
      count_step(update);
    }
  }
  update_all(updates, [&](size_t tensor, float* param, const float* gradient, int64_t begin, int64_t count) {
    const ParameterUpdate& update = updates[tensor];
    const SgdConstants constants{.factors = factors.step,
                                 .weight_decay = static_cast<float>(update.weight_decay),
                                 .lr = static_cast<float>(factors.lr_of(update)),
                                 .momentum = static_cast<float>(settings.momentum),
                                 .nesterov = settings.nesterov,
                                 .least = std::numeric_limits<float>::min()};
    float* buffer = settings.momentum != 0 ? update.slots[0].mutable_data_ptr<float>() + begin : nullptr;
    kernels.sgd(param, gradient, buffer, count, constants);
  });
}

}  // namespace mezzo::kernels::cpu
