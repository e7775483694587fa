#include "kernels/cpu/update_blocks.h"

namespace mezzo::kernels::cpu {
namespace {

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
  const HostFactors factors(gradient_factors, settings.maximize);
  if (factors.skip) {
    return;
  }
  element_kernels();  // or an error, before a step is counted
  std::vector<LambConstants> of_tensor;
  for (const ParameterUpdate& update : updates) {
    of_tensor.push_back(lamb_constants(settings, update.weight_decay, count_step(update), factors.step));
  }
  const auto norms = update_moments(updates, of_tensor);
  const auto chunks = chunks_of(updates);
  for_each_chunk(chunks, [&](size_t i) {
    const size_t tensor = chunks[i].tensor;
    const ParameterUpdate& update = updates[tensor];
    const double trust = lamb_trust(norms[tensor].param, norms[tensor].direction);
    for_each_block(chunks[i], [&](int64_t begin, int64_t count) {
      alignas(64) float param_copy[kBlock];
      auto* param = const_cast<float*>(read_block(update.param, begin, count, param_copy));
      element_kernels().lamb_params(param, update.slots[0].const_data_ptr<float>() + begin,
                                    update.slots[1].const_data_ptr<float>() + begin, count,
                                    static_cast<float>(trust * factors.lr_of(update)), of_tensor[tensor]);
      store_block(update, param, begin, count);
    });
  });
}

}  // namespace mezzo::kernels::cpu
