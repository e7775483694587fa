#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace mezzo::text {

/// The interval between actions of a run: N optimizer steps, or a share of an epoch. Default:
/// never.
class StepInterval {
 public:
  constexpr StepInterval() = default;
  /// @param count  optimizer steps, at least 0; 0: never
  static constexpr StepInterval steps(int64_t count) { return {count, 0}; }
  /// @param share  above 0, at most 1
  static constexpr StepInterval epochs(double share) { return {0, share}; }

  /// Reads "50" (steps), "0" (never), "epoch", or a share of an epoch such as "0.25".
  /// @param flag  for the message: "--eval-every"
  /// @throws c10::ValueError  for another text
  static StepInterval parse(std::string_view flag, const std::string& text);
  /// The text that parse() reads.
  std::string text() const;

  /// Whether the interval is infinite.
  bool is_never() const { return steps_ == 0 && share_ == 0; }
  /// The interval in steps: at least 1, rounded up; 0 for never.
  int64_t in_steps(int64_t steps_per_epoch) const;

  /// Equal intervals.
  bool operator==(const StepInterval&) const = default;

 private:
  constexpr StepInterval(int64_t steps, double share) : steps_(steps), share_(share) {}

  int64_t steps_ = 0;
  double share_ = 0;  // of an epoch
};

/// The default between evaluations: about 50 steps, with one to ten evaluations per epoch.
StepInterval default_eval_interval(int64_t steps_per_epoch);

}  // namespace mezzo::text
