#include "kernels/dropout.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <cmath>

#include "kernels/reference/random_words.h"

namespace mezzo::kernels::reference {

at::Tensor dropout_keep_mask(at::IntArrayRef sizes, double p, const RandomKey& key, const at::Device& device) {
  const int64_t count = c10::multiply_integers(sizes);
  const auto threshold = static_cast<int64_t>(std::ldexp(p, 32));
  const auto step = at::full({}, int64_t{key.step}, at::TensorOptions(at::kLong).device(device));
  return random_words((count + 3) / 4, step, key.seed, key.site).narrow(0, 0, count).ge(threshold).view(sizes);
}

at::Tensor dropout(const at::Tensor& x, double p, const RandomKey& key) {
  const auto scaled = x * (1 / (1 - p));
  return at::where(dropout_keep_mask(x.sizes(), p, key, x.device()), scaled, at::zeros({}, scaled.options()));
}

}  // namespace mezzo::kernels::reference
