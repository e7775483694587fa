#pragma once

#include <cstdint>

namespace mezzo::kernels {

/// Names one stream of random numbers: the same key gives the same numbers on every device and for
/// any thread count, so nothing random needs storing.
struct RandomKey {
  uint64_t seed = 0;  ///< of the run
  uint32_t step = 0;  ///< micro-batch of the run, counted from 0
  uint32_t site = 0;  ///< place in the model that draws, e.g. the dropout after layer 3's attention
};

}  // namespace mezzo::kernels
