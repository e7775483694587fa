#pragma once

#include <cstdint>

#include "encoder/cuda/mask_arguments.h"
#include "kernels/cuda/block.h"
#include "kernels/philox.h"

namespace mezzo::encoder::MEZZO_CUDA {

/// The same mask, whose step needs not be read again.
MEZZO_DEVICE Mask with_its_step(Mask mask) {
  if (mask.step_offset != nullptr) {
    mask.key.step += static_cast<uint32_t>(*mask.step_offset);
    mask.step_offset = nullptr;
  }
  return mask;
}

/// The words of Philox block {low, high, step, site}.
MEZZO_DEVICE auto mask_words(const Mask& mask, uint32_t low, uint32_t high) {
  const kernels::RandomKey key = with_its_step(mask).key;
  return kernels::Philox::generate({low, high, key.step, key.site}, key.seed);
}

/// Of the elements that Philox block {low, high, step, site} decides: the mask's scale, or 0.
MEZZO_DEVICE void mask_factors(const Mask& mask, uint32_t low, uint32_t high, float (&of)[4]) {
  const auto words = mask_words(mask, low, high);
  for (int i = 0; i < 4; ++i) {
    of[i] = words[static_cast<size_t>(i)] < mask.threshold ? 0.0f : mask.scale;
  }
}

/// Of elements 4 * block to 4 * block + 3.
MEZZO_DEVICE void mask_factors(const Mask& mask, int64_t block, float (&of)[4]) {
  mask_factors(mask, static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), of);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
