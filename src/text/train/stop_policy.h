#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/setup/train_config.h"

namespace mezzo::text {

/// After which steps a run evaluates, saves, pauses and ends. Depends on settings and counters alone, so all ranks
/// decide the same.
class StopPolicy {
 public:
  /// @param config  must outlive this
  StopPolicy(const TrainConfig& config, int64_t total_steps, bool has_dev)
      : config_(config), total_steps_(total_steps), has_dev_(has_dev) {
    const auto pause = static_cast<int64_t>(std::ceil(config.pause_at * static_cast<double>(total_steps)));
    last_step_ = std::clamp<int64_t>(pause, std::min<int64_t>(1, total_steps), total_steps);
  }

  /// Of this process, which may pause before the run ends.
  int64_t last_step() const { return last_step_; }
  bool is_end(int64_t step) const { return step >= total_steps_; }
  bool is_over(const TrainerState& state) const { return state.step >= last_step_ || is_out_of_patience(state); }
  /// Whether `patience` evaluations have passed since the best model.
  bool is_out_of_patience(const TrainerState& state) const {
    const int64_t best_step = state.best ? state.best->step : 0;
    return config_.patience > 0 && state.last_eval_step == state.step &&
           (state.step - best_step) / config_.eval_every >= config_.patience;
  }

  /// Whether the schedule of evaluations has one after `step`. Not all of those after the last step are in it.
  bool is_eval_step(int64_t step) const { return divides(config_.eval_every, step); }
  bool eval_is_due(const TrainerState& state) const {
    return has_dev_ && state.step > 0 && state.last_eval_step != state.step &&
           (state.step == last_step_ || is_end(state.step) || is_eval_step(state.step));
  }
  bool save_is_due(int64_t step) const {
    return config_.save_every > 0 && (divides(config_.save_every, step) || is_end(step));
  }
  /// Whether nothing comes between `step` and the next.
  bool goes_right_on(int64_t step) const {
    return step < last_step_ && !is_eval_step(step) && !divides(config_.save_every, step);
  }

 private:
  static bool divides(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

  const TrainConfig& config_;
  const int64_t total_steps_;
  const bool has_dev_;
  int64_t last_step_;
};

}  // namespace mezzo::text
