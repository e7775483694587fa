#pragma once

#include <cstdint>

namespace mezzo::kernels {

/// Names one stream of random numbers: the same key gives the same numbers on
/// every device and for any thread count, so nothing random needs storing.
struct RandomKey {
  uint64_t seed = 0;  ///< of the run
  uint32_t step = 0;  ///< micro-batch of the run, counted from 0
  uint32_t site = 0;  ///< place in the model that draws, e.g. the dropout after layer 3's attention

  /// As operators get one: the same bits, in the one kind of integer that schemas know.
  static constexpr RandomKey of(int64_t seed, int64_t step, int64_t site) {
    return {static_cast<uint64_t>(seed), static_cast<uint32_t>(step), static_cast<uint32_t>(site)};
  }
};

/// A dropout: its probability, 0 for none, and what keys its masks.
struct DropoutSite {
  double p = 0;
  RandomKey key;
};

}  // namespace mezzo::kernels
