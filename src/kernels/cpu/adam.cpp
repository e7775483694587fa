#include <cmath>

#include "kernels/cpu/update_blocks.h"
#include "kernels/cpu/vector_clones.h"

namespace mezzo::kernels::cpu {
namespace {

struct Constants {
  float inv_scale, clip;
  float weight_decay;  // added to the gradient, times the parameter
  float shrink;        // multiplies the parameter
  float mean_weight, beta2, square_weight, step_size, root_bias, eps;
  float least;  // moments of lesser magnitude are stored as 0
};

Constants constants(const ParameterUpdate& update, const AdamSettings& settings, const HostFactors& factors) {
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
          .least = flushes_denormals(settings) ? kSmallestNormal : 0.0f};
}

/// Rounds in the places where PyTorch's vector code does.
/// @param max_exp_avg_sq  nullptr without amsgrad
MEZZO_VECTOR_CLONES void update_block(float* __restrict param,
                                      const float* __restrict gradient,
                                      float* __restrict exp_avg,
                                      float* __restrict exp_avg_sq,
                                      float* __restrict max_exp_avg_sq,
                                      int64_t count,
                                      const Constants& c) {
  // The mean moves from its nearer end.
  const bool from_old = c.mean_weight < 0.5f;
  const float coefficient = from_old ? c.mean_weight : c.mean_weight - 1;
  for (int64_t i = 0; i < count; ++i) {
    float grad = gradient[i] * c.inv_scale * c.clip;
    if (c.weight_decay != 0) {
      grad = std::fma(param[i], c.weight_decay, grad);
    }
    const float mean = std::fma(coefficient, grad - exp_avg[i], from_old ? exp_avg[i] : grad);
    const float square = std::fma(c.square_weight * grad, grad, exp_avg_sq[i] * c.beta2);
    float largest = square;
    if (max_exp_avg_sq != nullptr) {
      largest = max_exp_avg_sq[i] >= square ? max_exp_avg_sq[i] : square;  // NaN, too
      max_exp_avg_sq[i] = flushed(largest, c.least);
    }
    const float denominator = std::sqrt(largest) / c.root_bias + c.eps;
    param[i] = param[i] * c.shrink - c.step_size * mean / denominator;
    exp_avg[i] = flushed(mean, c.least);
    exp_avg_sq[i] = flushed(square, c.least);
  }
}

}  // namespace

void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& gradient_factors) {
  const HostFactors factors(gradient_factors);
  if (factors.skip) {
    return;
  }
  std::vector<Constants> of_tensor;
  for (const ParameterUpdate& update : updates) {
    of_tensor.push_back(constants(update, settings, factors));
  }
  update_all(updates, [&](size_t tensor, float* param, const float* gradient, int64_t begin, int64_t count) {
    const auto slot = [&](size_t number) { return updates[tensor].slots[number].mutable_data_ptr<float>() + begin; };
    update_block(param, gradient, slot(0), slot(1), settings.amsgrad ? slot(2) : nullptr, count, of_tensor[tensor]);
  });
}

}  // namespace mezzo::kernels::cpu
