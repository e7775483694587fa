#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <optional>

namespace mezzo::distributed {

/// Traffic of one rank's DistributedDataParallel since its construction. For one step, subtract two
/// of them.
struct CommStats {
  int64_t steps = 0;           ///< forward passes that requested a reduction
  int64_t buckets = 0;         ///< all-reductions of gradients
  int64_t gradient_bytes = 0;  ///< gradients, in the dtype and size in which they were sent
  /// Seconds spent in reductions of gradients. CPU tensors only: the host does not know when a
  /// device ends.
  double seconds = 0;
  /// The part of `seconds` after the end of backward's computation.
  double exposed_seconds = 0;

  /// The share of `seconds` that overlapped with backward; nullopt if nothing was timed.
  std::optional<double> overlapped_share() const {
    return seconds > 0 ? std::optional(1 - exposed_seconds / seconds) : std::nullopt;
  }
};

}  // namespace mezzo::distributed
