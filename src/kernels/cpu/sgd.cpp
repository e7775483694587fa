#include <cmath>

#include "kernels/cpu/update_blocks.h"
#include "kernels/cpu/vector_clones.h"

namespace mezzo::kernels::cpu {
namespace {

struct Constants {
  float inv_scale, clip, weight_decay, lr, momentum;
};

// Both round in the places where PyTorch's vector code does.

[[gnu::always_inline]] inline float true_gradient(float gradient, float param, const Constants& c) {
  const float grad = gradient * c.inv_scale * c.clip;
  return c.weight_decay != 0 ? std::fma(param, c.weight_decay, grad) : grad;
}

MEZZO_VECTOR_CLONES void update_block(float* __restrict param,
                                      const float* __restrict gradient,
                                      int64_t count,
                                      const Constants& c) {
  for (int64_t i = 0; i < count; ++i) {
    param[i] = std::fma(true_gradient(gradient[i], param[i], c), -c.lr, param[i]);
  }
}

MEZZO_VECTOR_CLONES void update_block_with_momentum(float* __restrict param,
                                                    const float* __restrict gradient,
                                                    float* __restrict buffer,
                                                    int64_t count,
                                                    const Constants& c,
                                                    bool nesterov) {
  for (int64_t i = 0; i < count; ++i) {
    const float grad = true_gradient(gradient[i], param[i], c);
    const float moved = buffer[i] * c.momentum + grad;
    param[i] = std::fma(nesterov ? std::fma(moved, c.momentum, grad) : moved, -c.lr, param[i]);
    buffer[i] = flushed(moved, kSmallestNormal);
  }
}

}  // namespace

void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& gradient_factors) {
  const HostFactors factors(gradient_factors);
  if (factors.skip) {
    return;
  }
  for (const ParameterUpdate& update : updates) {
    if (update.step.defined()) {
      count_step(update);
    }
  }
  update_all(updates, [&](size_t tensor, float* param, const float* gradient, int64_t begin, int64_t count) {
    const ParameterUpdate& update = updates[tensor];
    const Constants constants{factors.inv_scale, factors.clip, static_cast<float>(update.weight_decay),
                              static_cast<float>(update.lr), static_cast<float>(settings.momentum)};
    if (settings.momentum == 0) {
      update_block(param, gradient, count, constants);
    } else {
      update_block_with_momentum(param, gradient, update.slots[0].mutable_data_ptr<float>() + begin, count, constants,
                                 settings.nesterov);
    }
  });
}

}  // namespace mezzo::kernels::cpu
