#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <optional>

namespace mezzo::distributed {

/// What one rank's DistributedDataParallel has sent since it was made. For one step, subtract two of them.
struct CommStats {
  int64_t steps = 0;           ///< forward passes that asked for a reduction
  int64_t buckets = 0;         ///< all-reductions of gradients
  int64_t gradient_bytes = 0;  ///< gradients, in the dtype and size in which they were sent
  /// Seconds in which gradients were reduced. CPU tensors only: the end on a device is not known to the host.
  double seconds = 0;
  /// The part of `seconds` after backward had computed everything.
  double exposed_seconds = 0;

  /// The share of `seconds` that passed while backward computed; nullopt if nothing was timed.
  std::optional<double> overlapped_share() const {
    return seconds > 0 ? std::optional(1 - exposed_seconds / seconds) : std::nullopt;
  }
};

}  // namespace mezzo::distributed
