#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/train/train_config.h"
#include "text/train/run_plan.h"

namespace mezzo::text {

/// After which steps a run evaluates, saves, pauses and ends. Depends on settings and counters alone, so all ranks
/// decide the same.
class StopPolicy {
 public:
  StopPolicy(const TrainConfig& config, const RunPlan& plan, bool has_dev)
      : total_steps_(plan.total_steps),
        eval_every_(plan.eval_every),
        save_every_(plan.save_every),
        patience_(config.patience),
        has_dev_(has_dev) {
    const auto pause = static_cast<int64_t>(std::ceil(config.pause_at * static_cast<double>(total_steps_)));
    last_step_ = std::clamp<int64_t>(pause, std::min<int64_t>(1, total_steps_), total_steps_);
  }

  /// Of this process, which may pause before the run ends.
  int64_t last_step() const { return last_step_; }
  bool is_end(int64_t step) const { return step >= total_steps_; }
  bool is_over(const TrainerState& state) const { return state.step >= last_step_ || is_out_of_patience(state); }
  /// Whether `patience` evaluations have passed since the best model.
  bool is_out_of_patience(const TrainerState& state) const {
    const int64_t best_step = state.best ? state.best->step : 0;
    return patience_ > 0 && state.last_eval_step == state.step && (state.step - best_step) / eval_every_ >= patience_;
  }

  /// Whether the schedule of evaluations has one after `step`. Not all of those after the last step are in it.
  bool is_eval_step(int64_t step) const { return divides(eval_every_, step); }
  bool eval_is_due(const TrainerState& state) const {
    return has_dev_ && state.step > 0 && state.last_eval_step != state.step &&
           (state.step == last_step_ || is_end(state.step) || is_eval_step(state.step));
  }
  bool save_is_due(int64_t step) const { return save_every_ > 0 && (divides(save_every_, step) || is_end(step)); }
  /// Whether nothing comes between `step` and the next.
  bool goes_right_on(int64_t step) const {
    return step < last_step_ && !is_eval_step(step) && !divides(save_every_, step);
  }

 private:
  static bool divides(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

  const int64_t total_steps_, eval_every_, save_every_, patience_;
  const bool has_dev_;
  int64_t last_step_;
};

}  // namespace mezzo::text
