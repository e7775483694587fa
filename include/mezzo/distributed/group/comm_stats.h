#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <optional>

namespace mezzo::distributed {

/// What one rank handed to collectives, and how long they took.
struct CommTraffic {
  int64_t gradient_bytes = 0;  ///< gradients, in the dtype and size in which they were sent
  int64_t other_bytes = 0;     ///< buffers, the map of used parameters, the order of buckets
  int64_t buckets = 0;
  int64_t collectives = 0;  ///< those that carried gradients
  /// How long at least one collective with gradients was under way, or a hook that needs none held
  /// up backward. CPU tensors only.
  double seconds = 0;
  /// The part of `seconds` after backward had nothing left to compute: what communication costs.
  double exposed_seconds = 0;

  /// The share of `seconds` that passed while backward computed; nullopt where none was measured.
  std::optional<double> overlapped_share() const {
    return seconds > 0 ? std::optional(1 - exposed_seconds / seconds) : std::nullopt;
  }
};

/// The traffic of a DistributedDataParallel since it was made.
struct CommStats {
  int64_t steps = 0;      ///< forward passes that asked for a reduction
  CommTraffic last_step;  ///< since the last of them began
  CommTraffic total;
};

}  // namespace mezzo::distributed
