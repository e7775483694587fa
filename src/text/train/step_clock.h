#pragma once

#include <chrono>
#include <utility>

#include "mezzo/text/report/run_records.h"

namespace mezzo::text {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The time of each part of a step, of work that the CPU does itself.
class StepClock {
 public:
  /// From now on the time counts to this part; null: to none.
  void enter(double StepParts::* part) {
    const auto now = Clock::now();
    if (part_ != nullptr) {
      parts_.*part_ += std::chrono::duration<double>(now - begin_).count();
    }
    part_ = part;
    begin_ = now;
  }

  /// The times since the last call.
  StepParts take() { return std::exchange(parts_, {}); }

 private:
  StepParts parts_;
  double StepParts::* part_ = nullptr;
  Clock::time_point begin_;
};

}  // namespace mezzo::text
