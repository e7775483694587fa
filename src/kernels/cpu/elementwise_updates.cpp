#include "kernels/cpu/update_blocks.h"

namespace mezzo::kernels::cpu {
namespace {

/// Counts the steps, unless they are skipped, and updates every parameter.
/// @param constants_of  makes the constants of an update from its step number (0: not counted) and the factors
/// @param compute  (kernels, param, gradient, slots, count, constants) changes `count` elements; `slots` are pointers
template <class Settings, class ConstantsOf, class Compute>
void update_elements(const ParameterUpdates& updates,
                     const Settings& settings,
                     const GradientFactors& gradient_factors,
                     const ConstantsOf& constants_of,
                     const Compute& compute) {
  const HostFactors factors(gradient_factors, settings.maximize);
  if (factors.skip) {
    return;
  }
  const ElementKernels& kernels = element_kernels();  // or an error, before a step is counted
  std::vector<decltype(constants_of(updates[0], 0.0, factors))> of_tensor;
  for (const ParameterUpdate& update : updates) {
    of_tensor.push_back(constants_of(update, update.step.defined() ? count_step(update) : 0, factors));
  }
  update_all(updates, [&](size_t tensor, float* param, const float* gradient, int64_t begin, int64_t count) {
    float* slots[3] = {};
    for (size_t i = 0; i < updates[tensor].slots.size(); ++i) {
      slots[i] = updates[tensor].slots[i].mutable_data_ptr<float>() + begin;
    }
    compute(kernels, param, gradient, slots, count, of_tensor[tensor]);
  });
}

}  // namespace

void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors) {
  update_elements(
      updates, settings, factors,
      [&](const ParameterUpdate& update, double step, const HostFactors& host) {
        return adam_constants(settings, host.lr_of(update), update.weight_decay, step, host.step,
                              flushes_denormals(settings));
      },
      [](const ElementKernels& kernels, float* param, const float* gradient, float** slots, int64_t count,
         const AdamConstants& c) { kernels.adam(param, gradient, slots[0], slots[1], slots[2], count, c); });
}

void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors) {
  update_elements(
      updates, settings, factors,
      [&](const ParameterUpdate& update, double step, const HostFactors& host) {
        return sgd_constants(settings, host.lr_of(update), update.weight_decay, step == 1, host.step);
      },
      [](const ElementKernels& kernels, float* param, const float* gradient, float** slots, int64_t count,
         const SgdConstants& c) { kernels.sgd(param, gradient, slots[0], count, c); });
}

void rmsprop(const ParameterUpdates& updates, const RmspropSettings& settings, const GradientFactors& factors) {
  const size_t grad_avg = settings.momentum != 0 ? 2 : 1;  // its slot
  update_elements(
      updates, settings, factors,
      [&](const ParameterUpdate& update, double, const HostFactors& host) {
        return rmsprop_constants(settings, host.lr_of(update), update.weight_decay, host.step,
                                 flushes_denormals(settings));
      },
      [&](const ElementKernels& kernels, float* param, const float* gradient, float** slots, int64_t count,
          const RmspropConstants& c) {
        kernels.rmsprop(param, gradient, slots[0], settings.momentum != 0 ? slots[1] : nullptr,
                        settings.centered ? slots[grad_avg] : nullptr, count, c);
      });
}

}  // namespace mezzo::kernels::cpu
