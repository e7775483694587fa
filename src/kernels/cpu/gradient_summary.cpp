#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "kernels/cpu/update_blocks.h"
#include "kernels/scaling_elements.h"

namespace mezzo::kernels::cpu {

GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients,
                                    const at::Tensor& scale,
                                    double max_norm) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& gradient : gradients) {
    sizes.push_back(gradient.numel());
  }
  const auto chunks = cut_into_chunks(sizes);
  std::vector<double> sums(chunks.size(), 0.0);
  for_each_chunk(chunks, [&](size_t i) {
    for_each_block(chunks[i], [&](int64_t begin, int64_t count) {
      alignas(64) float copy[kBlock];
      sums[i] += element_kernels().sum_of_squares(read_block(gradients[chunks[i].tensor], begin, count, copy), count);
    });
  });
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  const float of_scale = scale.defined() ? *scale.const_data_ptr<float>() : 1, inv_scale = inverse_scale(of_scale);
  const double factor = inv_scale;
  const auto norm = static_cast<float>(std::sqrt(total) * factor);
  const auto number = [](double value) { return at::scalar_tensor(value, at::kFloat); };
  return {number(norm), number(is_finite(norm) && !is_lost(of_scale) ? 0 : 1),
          at::scalar_tensor(total * factor * factor, at::kDouble), number(inv_scale),
          number(clip_by_norm(norm, static_cast<float>(max_norm)))};
}

}  // namespace mezzo::kernels::cpu
