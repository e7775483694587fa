#include "encoder/dropout.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <cmath>

#include "kernels/reference/random_words.h"

namespace mezzo::encoder::reference {
namespace {

using kernels::reference::random_words;

int64_t threshold_of(double p) { return static_cast<int64_t>(std::ldexp(p, 32)); }

at::Tensor where_kept(const at::Tensor& keep, const at::Tensor& x, double p) {
  const auto scaled = x * (1 / (1 - p));
  return at::where(keep, scaled, at::zeros({}, scaled.options()));
}

}  // namespace

at::Tensor step_of(const DropoutSite& site, const at::Device& device) {
  return site.step_offset.defined() ? (site.step_offset + int64_t{site.key.step}).bitwise_and(0xFFFFFFFF)
                                    : at::full({}, int64_t{site.key.step}, at::TensorOptions(at::kLong).device(device));
}

at::Tensor dropout_keep_mask(at::IntArrayRef sizes, const DropoutSite& site, const at::Device& device) {
  const int64_t count = c10::multiply_integers(sizes);
  return random_words((count + 3) / 4, step_of(site, device), site.key.seed, site.key.site)
      .narrow(0, 0, count)
      .ge(threshold_of(site.p))
      .view(sizes);
}

at::Tensor dropout(const at::Tensor& x, const DropoutSite& site) {
  return where_kept(dropout_keep_mask(x.sizes(), site, x.device()), x, site.p);
}

at::Tensor dropout_of_rows(const at::Tensor& x, const at::Tensor& row_numbers, const DropoutSite& site) {
  if (site.p == 0) {
    return x;
  }
  const auto options = row_numbers.options();
  const auto element = row_numbers.unsqueeze(1) * x.size(1) + at::arange(x.size(1), options);  // [R, H]
  const auto block = element.bitwise_right_shift(2), word = element.bitwise_and(3).unsqueeze(-1);
  const auto words = random_words(block.bitwise_and(0xFFFFFFFF), block.bitwise_right_shift(32),
                                  step_of(site, x.device()), site.key.seed, site.key.site);
  return where_kept(words.gather(-1, word).squeeze(-1).ge(threshold_of(site.p)), x, site.p);
}

}  // namespace mezzo::encoder::reference
