#include <cmath>

#include "kernels/cpu/update_blocks.h"

namespace mezzo::kernels::cpu {
namespace {

LambConstants constants(const ParameterUpdate& update, const LambSettings& settings, const HostFactors& factors) {
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

/// The first pass: moments from gradients, and the norms of every parameter and direction.
std::vector<LambNorms> update_moments(const ParameterUpdates& updates, const std::vector<LambConstants>& of_tensor) {
  const auto chunks = chunks_of(updates);
  std::vector<LambNorms> of_chunk(chunks.size());
  for_each_chunk(chunks, [&](size_t i) {
    const ParameterUpdate& update = updates[chunks[i].tensor];
    const LambConstants& c = of_tensor[chunks[i].tensor];
    for_each_block(chunks[i], [&](int64_t begin, int64_t count) {
      alignas(64) float param_copy[kBlock], gradient_copy[kBlock];
      auto* exp_avg = update.slots[0].mutable_data_ptr<float>() + begin;
      auto* exp_avg_sq = update.slots[1].mutable_data_ptr<float>() + begin;
      const ElementKernels& kernels = element_kernels();
      kernels.lamb_moments(read_block(update.gradient, begin, count, gradient_copy), exp_avg, exp_avg_sq, count, c);
      const LambNorms norms =
          kernels.lamb_norms(read_block(update.param, begin, count, param_copy), exp_avg, exp_avg_sq, count, c);
      of_chunk[i].param += norms.param;
      of_chunk[i].direction += norms.direction;
    });
  });
  std::vector<LambNorms> sums(updates.size());
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
  element_kernels();  // or an error, before a step is counted
  std::vector<LambConstants> of_tensor;
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
      element_kernels().lamb_params(param, update.slots[0].const_data_ptr<float>() + begin,
                                    update.slots[1].const_data_ptr<float>() + begin, count,
                                    static_cast<float>(trust * update.lr), of_tensor[tensor]);
      store_block(update, param, begin, count);
    });
  });
}

}  // namespace mezzo::kernels::cpu
