#include <cmath>

#include "kernels/cpu/update_blocks.h"
#include "kernels/cpu/vector_clones.h"

namespace mezzo::kernels::cpu {
namespace {

constexpr int kLanes = 8;  // partial sums, so that they become vectors

struct Constants {
  float inv_scale, clip, weight_decay, beta1, mean_weight, beta2, square_weight, bias1, bias2, eps;
};

Constants constants(const ParameterUpdate& update, const LambSettings& settings, const HostFactors& factors) {
  const double step = count_step(update);
  return {.inv_scale = factors.inv_scale,
          .clip = factors.clip,
          .weight_decay = static_cast<float>(update.weight_decay),
          .beta1 = static_cast<float>(settings.beta1),
          .mean_weight = static_cast<float>(1 - settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .square_weight = static_cast<float>(1 - settings.beta2),
          .bias1 = static_cast<float>(1 - std::pow(settings.beta1, step)),
          .bias2 = static_cast<float>(1 - std::pow(settings.beta2, step)),
          .eps = static_cast<float>(settings.eps)};
}

[[gnu::always_inline]] inline float direction(float param, float mean, float square, const Constants& c) {
  return mean / c.bias1 / (std::sqrt(square / c.bias2) + c.eps) + param * c.weight_decay;
}

/// Squared norms of a parameter and of its direction.
struct Norms {
  double param = 0, direction = 0;
};

MEZZO_VECTOR_CLONES void move_moments(const float* __restrict gradient,
                                      float* __restrict exp_avg,
                                      float* __restrict exp_avg_sq,
                                      int64_t count,
                                      const Constants& c) {
  for (int64_t i = 0; i < count; ++i) {
    const float grad = gradient[i] * c.inv_scale * c.clip;
    exp_avg[i] = exp_avg[i] * c.beta1 + grad * c.mean_weight;
    exp_avg_sq[i] = exp_avg_sq[i] * c.beta2 + grad * grad * c.square_weight;
  }
}

MEZZO_VECTOR_CLONES Norms
sum_squares(const float* param, const float* exp_avg, const float* exp_avg_sq, int64_t count, const Constants& c) {
  double of_param[kLanes] = {}, of_direction[kLanes] = {};
  int64_t i = 0;
  const auto add = [&](int64_t at, int lane) __attribute__((always_inline)) {
    const double p = param[at], d = direction(param[at], exp_avg[at], exp_avg_sq[at], c);
    of_param[lane] += p * p;
    of_direction[lane] += d * d;
  };
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      add(i + lane, lane);
    }
  }
  for (; i < count; ++i) {
    add(i, 0);
  }
  Norms norms;
  for (int lane = 0; lane < kLanes; ++lane) {
    norms.param += of_param[lane];
    norms.direction += of_direction[lane];
  }
  return norms;
}

MEZZO_VECTOR_CLONES void move_params(float* __restrict param,
                                     const float* __restrict exp_avg,
                                     const float* __restrict exp_avg_sq,
                                     int64_t count,
                                     float step_size,
                                     const Constants& c) {
  for (int64_t i = 0; i < count; ++i) {
    param[i] -= step_size * direction(param[i], exp_avg[i], exp_avg_sq[i], c);
  }
}

/// The first pass: moments from gradients, and the norms of every parameter and direction.
std::vector<Norms> update_moments(const ParameterUpdates& updates, const std::vector<Constants>& of_tensor) {
  const auto chunks = chunks_of(updates);
  std::vector<Norms> of_chunk(chunks.size());
  for_each_chunk(chunks, [&](size_t i) {
    const ParameterUpdate& update = updates[chunks[i].tensor];
    const Constants& c = of_tensor[chunks[i].tensor];
    for_each_block(chunks[i], [&](int64_t begin, int64_t count) {
      alignas(64) float param_copy[kBlock], gradient_copy[kBlock];
      auto* exp_avg = update.slots[0].mutable_data_ptr<float>() + begin;
      auto* exp_avg_sq = update.slots[1].mutable_data_ptr<float>() + begin;
      move_moments(read_block(update.gradient, begin, count, gradient_copy), exp_avg, exp_avg_sq, count, c);
      const Norms norms =
          sum_squares(read_block(update.param, begin, count, param_copy), exp_avg, exp_avg_sq, count, c);
      of_chunk[i].param += norms.param;
      of_chunk[i].direction += norms.direction;
    });
  });
  std::vector<Norms> sums(updates.size());
  for (size_t i = 0; i < chunks.size(); ++i) {
    sums[chunks[i].tensor].param += of_chunk[i].param;
    sums[chunks[i].tensor].direction += of_chunk[i].direction;
  }
  return sums;
}

}  // namespace

void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& gradient_factors) {
  const HostFactors factors(gradient_factors);
  if (factors.skip) {
    return;
  }
  std::vector<Constants> of_tensor;
  for (const ParameterUpdate& update : updates) {
    of_tensor.push_back(constants(update, settings, factors));
  }
  const auto norms = update_moments(updates, of_tensor);
  const auto chunks = chunks_of(updates);
  for_each_chunk(chunks, [&](size_t i) {
    const size_t tensor = chunks[i].tensor;
    const ParameterUpdate& update = updates[tensor];
    const double trust = norms[tensor].param > 0 && norms[tensor].direction > 0
                             ? std::sqrt(norms[tensor].param / norms[tensor].direction)
                             : 1.0;
    for_each_block(chunks[i], [&](int64_t begin, int64_t count) {
      alignas(64) float param_copy[kBlock];
      auto* param = const_cast<float*>(read_block(update.param, begin, count, param_copy));
      move_params(param, update.slots[0].const_data_ptr<float>() + begin,
                  update.slots[1].const_data_ptr<float>() + begin, count, static_cast<float>(trust * update.lr),
                  of_tensor[tensor]);
      store_block(update, param, begin, count);
    });
  });
}

}  // namespace mezzo::kernels::cpu
