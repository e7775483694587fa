#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#ifdef __CUDACC__
#define MEZZO_ELEMENT __host__ __device__ __forceinline__
#else
#define MEZZO_ELEMENT [[gnu::always_inline]] inline
#endif

/// An optimizer's work on one element, in float32: bit-identical on every device and instruction set. Products and sums
/// are rounded as one only where `fmaf` says so, in the places where PyTorch's vector code does.
namespace mezzo::kernels {

/// A moment as it is stored: 0 where its magnitude is less than `least`. A NaN stays.
MEZZO_ELEMENT float flushed(float moment, float least) { return ::fabsf(moment) < least ? 0.0f : moment; }

/// Factors of every gradient: 1 / loss scale, then clipping. A step that maximizes has a negative
/// `inv_scale`.
struct StepFactors {
  float inv_scale = 1, clip = 1;
};

struct AdamConstants {
  StepFactors factors;
  float weight_decay;  ///< added to the gradient, times the parameter
  float shrink;        ///< multiplies the parameter
  float mean_weight, beta2, square_weight, step_size, root_bias, eps;
  float least;  ///< magnitude of a moment that is stored as it is
};

struct AdamSettings {
  using Constants = AdamConstants;
  double beta1, beta2, eps;
  bool amsgrad;    ///< divides by the root of the largest second moment so far
  bool decoupled;  ///< weight decay shrinks the weights (AdamW), not added to gradients (Adam)
  bool maximize = false;
};

/// @param step  the number of this update, from 1
/// @param flushes  whether denormal moments are stored as 0
MEZZO_ELEMENT AdamConstants adam_constants(
    const AdamSettings& settings, double lr, double weight_decay, double step, StepFactors factors, bool flushes) {
  const double bias1 = 1 - std::pow(settings.beta1, step), bias2 = 1 - std::pow(settings.beta2, step);
  return {factors,
          settings.decoupled ? 0.0f : static_cast<float>(weight_decay),
          settings.decoupled ? static_cast<float>(1 - lr * weight_decay) : 1.0f,
          static_cast<float>(1 - settings.beta1),
          static_cast<float>(settings.beta2),
          static_cast<float>(1 - settings.beta2),
          static_cast<float>(lr / bias1),
          static_cast<float>(std::sqrt(bias2)),
          static_cast<float>(settings.eps),
          flushes ? std::numeric_limits<float>::min() : 0.0f};
}

/// @param max_exp_avg_sq  nullptr without amsgrad
MEZZO_ELEMENT void adam_element(
    float& param, float gradient, float& exp_avg, float& exp_avg_sq, float* max_exp_avg_sq, const AdamConstants& c) {
  float grad = gradient * c.factors.inv_scale * c.factors.clip;
  if (c.weight_decay != 0) {
    grad = ::fmaf(param, c.weight_decay, grad);
  }
  const bool from_old = c.mean_weight < 0.5f;  // the mean moves from its nearer end
  const float coefficient = from_old ? c.mean_weight : c.mean_weight - 1;
  const float mean = ::fmaf(coefficient, grad - exp_avg, from_old ? exp_avg : grad);
  const float square = ::fmaf(c.square_weight * grad, grad, exp_avg_sq * c.beta2);
  float largest = square;
  if (max_exp_avg_sq != nullptr) {
    largest = *max_exp_avg_sq >= square ? *max_exp_avg_sq : square;  // NaN, too
    *max_exp_avg_sq = flushed(largest, c.least);
  }
  const float denominator = ::sqrtf(largest) / c.root_bias + c.eps;
  param = param * c.shrink - c.step_size * mean / denominator;
  exp_avg = flushed(mean, c.least);
  exp_avg_sq = flushed(square, c.least);
}

struct SgdConstants {
  StepFactors factors;
  float weight_decay, lr, momentum, grad_weight;
  bool nesterov;
  float least;  ///< as above
};

struct SgdSettings {
  using Constants = SgdConstants;
  double momentum;
  bool nesterov;
  double dampening = 0;
  bool maximize = false;
};

/// @param is_first  the buffer is 0, and the gradient is not dampened
MEZZO_ELEMENT SgdConstants
sgd_constants(const SgdSettings& settings, double lr, double weight_decay, bool is_first, StepFactors factors) {
  return {factors,
          static_cast<float>(weight_decay),
          static_cast<float>(lr),
          static_cast<float>(settings.momentum),
          is_first ? 1.0f : static_cast<float>(1 - settings.dampening),
          settings.nesterov,
          std::numeric_limits<float>::min()};
}

/// @param buffer  nullptr without momentum
MEZZO_ELEMENT void sgd_element(float& param, float gradient, float* buffer, const SgdConstants& c) {
  float grad = gradient * c.factors.inv_scale * c.factors.clip;
  if (c.weight_decay != 0) {
    grad = ::fmaf(param, c.weight_decay, grad);
  }
  if (buffer != nullptr) {
    const float moved = *buffer * c.momentum + grad * c.grad_weight;
    grad = c.nesterov ? ::fmaf(moved, c.momentum, grad) : moved;
    *buffer = flushed(moved, c.least);
  }
  param = ::fmaf(grad, -c.lr, param);
}

struct RmspropConstants {
  StepFactors factors;
  float weight_decay, lr, alpha, square_weight, eps, momentum;
  float least;  ///< as above
};

struct RmspropSettings {
  using Constants = RmspropConstants;
  double alpha, eps, momentum;
  bool centered;
  bool maximize = false;
};

MEZZO_ELEMENT RmspropConstants
rmsprop_constants(const RmspropSettings& settings, double lr, double weight_decay, StepFactors factors, bool flushes) {
  return {factors,
          static_cast<float>(weight_decay),
          static_cast<float>(lr),
          static_cast<float>(settings.alpha),
          static_cast<float>(1 - settings.alpha),
          static_cast<float>(settings.eps),
          static_cast<float>(settings.momentum),
          flushes ? std::numeric_limits<float>::min() : 0.0f};
}

/// @param buffer  nullptr without momentum
/// @param grad_avg  nullptr unless centered
MEZZO_ELEMENT void rmsprop_element(
    float& param, float gradient, float& square_avg, float* buffer, float* grad_avg, const RmspropConstants& c) {
  float grad = gradient * c.factors.inv_scale * c.factors.clip;
  if (c.weight_decay != 0) {
    grad = ::fmaf(param, c.weight_decay, grad);
  }
  const float square = square_avg * c.alpha + c.square_weight * grad * grad;
  float variance = square;
  if (grad_avg != nullptr) {
    const float mean = *grad_avg + c.square_weight * (grad - *grad_avg);
    variance = square - mean * mean;
    *grad_avg = mean;
  }
  float direction = grad / (::sqrtf(variance) + c.eps);
  if (buffer != nullptr) {
    direction = *buffer * c.momentum + direction;
    *buffer = flushed(direction, c.least);
  }
  square_avg = flushed(square, c.least);
  param = param - c.lr * direction;
}

struct LambConstants {
  StepFactors factors;
  float weight_decay, beta1, mean_weight, beta2, square_weight, bias1, bias2, eps;
};

struct LambSettings {
  using Constants = LambConstants;
  double beta1, beta2, eps;
  bool maximize = false;
};

MEZZO_ELEMENT LambConstants lamb_constants(const LambSettings& settings,
                                           double weight_decay,
                                           double step,
                                           StepFactors factors) {
  return {factors,
          static_cast<float>(weight_decay),
          static_cast<float>(settings.beta1),
          static_cast<float>(1 - settings.beta1),
          static_cast<float>(settings.beta2),
          static_cast<float>(1 - settings.beta2),
          static_cast<float>(1 - std::pow(settings.beta1, step)),
          static_cast<float>(1 - std::pow(settings.beta2, step)),
          static_cast<float>(settings.eps)};
}

MEZZO_ELEMENT void lamb_moments(float gradient, float& exp_avg, float& exp_avg_sq, const LambConstants& c) {
  const float grad = gradient * c.factors.inv_scale * c.factors.clip;
  exp_avg = exp_avg * c.beta1 + grad * c.mean_weight;
  exp_avg_sq = exp_avg_sq * c.beta2 + grad * grad * c.square_weight;
}

/// The direction in which a parameter moves, before its trust ratio and the learning rate.
MEZZO_ELEMENT float lamb_direction(float param, float exp_avg, float exp_avg_sq, const LambConstants& c) {
  return exp_avg / c.bias1 / (::sqrtf(exp_avg_sq / c.bias2) + c.eps) + param * c.weight_decay;
}

/// Of the squared norms of a parameter and of its direction: the factor of the direction.
MEZZO_ELEMENT double lamb_trust(double param, double direction) {
  return param > 0 && direction > 0 ? std::sqrt(param / direction) : 1.0;
}

}  // namespace mezzo::kernels
