#include "kernels/cpu/update_blocks.h"

namespace mezzo::kernels::cpu {
void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& gradient_factors) {
  const HostFactors factors(gradient_factors);
  if (factors.skip) {
    return;
  }
  const ElementKernels& kernels = element_kernels();  // or an error, before a step is counted
  std::vector<AdamConstants> of_tensor;
  for (const ParameterUpdate& update : updates) {
    of_tensor.push_back(adam_constants(settings, factors.lr_of(update), update.weight_decay, count_step(update),
                                       factors.step, flushes_denormals(settings)));
  }
  update_all(updates, [&](size_t tensor, float* param, const float* gradient, int64_t begin, int64_t count) {
    const auto slot = [&](size_t number) { return updates[tensor].slots[number].mutable_data_ptr<float>() + begin; };
    kernels.adam(param, gradient, slot(0), slot(1), settings.amsgrad ? slot(2) : nullptr, count, of_tensor[tensor]);
  });
}

}  // namespace mezzo::kernels::cpu
