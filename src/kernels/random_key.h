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

/// A dropout: its probability, 0 for none, and what keys its masks.
struct DropoutSite {
  double p = 0;
  RandomKey key;

  /// As operators get one: the key's bits in the one kind of integer that schemas know.
  /// @throws c10::ValueError  unless p is in [0, 1)
  static DropoutSite of(double p, int64_t seed, int64_t step, int64_t site);
};

}  // namespace mezzo::kernels
