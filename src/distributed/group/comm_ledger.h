#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

#include "mezzo/distributed/group/comm_stats.h"

namespace mezzo::distributed {

/// Keeps CommStats. Thread-safe: collectives end on threads of their own.
class CommLedger {
 public:
  CommStats stats() const;

  void begin_step();
  void add_bucket();
  void add_other_bytes(int64_t bytes);
  void begin_collective(int64_t bytes, bool timed);
  void end_collective();
  /// A hook has exchanged gradients by itself, without a collective, and
  /// held up backward for so long.
  void add_blocked(double seconds);
  /// From now on the step only waits for its collectives.
  void compute_has_ended();

 private:
  using Clock = std::chrono::steady_clock;

  mutable std::mutex mutex_;
  CommStats stats_;
  int under_way_ = 0;
  Clock::time_point busy_since_;                       // where any is under way
  std::optional<Clock::time_point> compute_ended_at_;  // of this step
};

}  // namespace mezzo::distributed
