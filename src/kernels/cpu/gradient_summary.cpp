#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "kernels/cpu/update_blocks.h"

namespace mezzo::kernels::cpu {

GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients, const at::Tensor& inv_scale) {
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
  const double factor = inv_scale.defined() ? double{*inv_scale.const_data_ptr<float>()} : 1.0;
  const auto norm = static_cast<float>(std::sqrt(total) * factor);
  return {at::scalar_tensor(norm, at::kFloat), at::scalar_tensor(std::isfinite(norm) ? 0.0f : 1.0f, at::kFloat),
          at::scalar_tensor(total * factor * factor, at::kDouble)};
}

}  // namespace mezzo::kernels::cpu
