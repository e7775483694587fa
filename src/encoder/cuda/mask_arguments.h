#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"
#include "kernels/random_key.h"

namespace mezzo::encoder::MEZZO_CUDA {

/// Which elements are dropped, as encoder/dropout.h has it: with probability threshold / 2^32; the
/// others are multiplied by `scale`.
struct Mask {
  uint32_t threshold = 0;
  float scale = 1;
  kernels::RandomKey key;
  const int64_t* step_offset = nullptr;  ///< on the device, added to key.step; nullptr for 0
};

}  // namespace mezzo::encoder::MEZZO_CUDA
