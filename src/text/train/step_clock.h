#pragma once

#include <utility>

#include "mezzo/text/records/run_records.h"
#include "text/train/clock.h"

namespace mezzo::text {

/// Which part of a step the CPU is at, and what each has taken: of work that the CPU does itself.
class StepClock {
 public:
  /// From now on the time counts to this part; to none where it is null.
  void enter(double StepParts::* part) {
    const auto now = Clock::now();
    if (part_ != nullptr) {
      parts_.*part_ += std::chrono::duration<double>(now - begin_).count();
    }
    part_ = part;
    begin_ = now;
  }

  /// Since it was last asked.
  StepParts take() { return std::exchange(parts_, {}); }

 private:
  StepParts parts_;
  double StepParts::* part_ = nullptr;
  Clock::time_point begin_;
};

}  // namespace mezzo::text
