#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/optim/lr_schedule.h"

namespace mezzo {

/// The learning rates that a scheduler drives, one for each parameter group. Converts from a
/// `torch::optim::Optimizer`, such as a ZeroRedundancyOptimizer, and from a 0-dim tensor. Writes in
/// place to the tensor, and to one given to an optimizer's `set_lr`. Refers to it.
class LearningRates {
 public:
  LearningRates(torch::optim::Optimizer& optimizer);
  /// @throws c10::ValueError  for a tensor with dimensions, or of a dtype that is not floating
  LearningRates(at::Tensor lr);

  /// Waits for the device of a tensor.
  std::vector<double> get() const { return get_(); }
  /// @param lrs  as many as get() gives
  /// @throws c10::ValueError  for one that is negative or not finite; nothing has changed then
  void set(const std::vector<double>& lrs) const;

 private:
  std::function<std::vector<double>()> get_;
  std::function<void(const std::vector<double>&)> set_;
};

/// Keeps each learning rate at its initial value times a schedule's factor, as
/// torch.optim.lr_scheduler.LambdaLR does.
///
/// @code
/// mezzo::LRScheduler scheduler(optimizer, mezzo::get_schedule("linear", {.num_warmup_steps = 100,
///                                                                        .num_training_steps = 1000}));
/// // in the loop; a skipped step does not advance it:
/// if (scaler.step(optimizer).stepped()) scheduler.step();
/// @endcode
///
/// To resume a run, make it with the optimizer as at the start of the run, then `torch::load` both.
/// Not thread-safe. Only the calls that say so wait for a device.
class LRScheduler {
 public:
  /// Sets the learning rates of step 0 at once. Waits for the device of a tensor, here alone.
  /// @throws c10::ValueError  for a factor of the first two steps that is negative or not finite
  LRScheduler(LearningRates lrs, LrSchedule schedule);

  /// For a learning rate that kernels read on the device, in a CUDA graph too. Factors lie in a
  /// table there, and `step` never waits. Learning rates have the same bits as on the host.
  /// @code
  /// optimizer.set_lr(lr);  // a 0-dim float64 tensor on the device
  /// mezzo::LRScheduler scheduler(lr, schedule, /*num_steps=*/1000);
  /// scaler.step(optimizer);
  /// scheduler.step(optimizer.found_inf());
  /// @endcode
  /// @param lr  its value is the initial learning rate
  /// @param num_steps  of the run, at least 1: after these the learning rate stays
  /// @throws c10::ValueError  also for a negative or non-finite factor of any of these steps
  LRScheduler(const at::Tensor& lr, const LrSchedule& schedule, int64_t num_steps);

  /// A copy would drive the same learning rates.
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;
  LRScheduler(LRScheduler&&) noexcept = default;
  LRScheduler& operator=(LRScheduler&&) noexcept = default;

  /// Another step was taken.
  /// @param found_inf  one number of any dtype and device: if it is not 0, the step was skipped and
  ///     nothing changes. Undefined: the step was taken. Without a table, a defined one waits.
  /// @throws c10::ValueError  for a factor that is negative or not finite
  void step(const at::Tensor& found_inf = {});

  /// Taken so far. With a table on a device, waits for it.
  int64_t steps() const;
  /// Continues from there.
  /// @throws c10::ValueError  for a negative number
  void set_steps(int64_t steps);
  /// One for each parameter group. Waits for the device of a tensor.
  std::vector<double> get_last_lr() const { return lrs_.get(); }

 private:
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive&, const LRScheduler&);
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive&, LRScheduler&);
  void look_up();

  LearningRates lrs_;
  LrSchedule schedule_;
  std::vector<double> base_lrs_;
  int64_t steps_ = 0;
  at::Tensor lr_, factors_, base_lr_, device_steps_;  // of a table on a device: factors_ [num_steps + 1], others 0-dim
};

/// For `torch::save` and `torch::load`: steps and initial learning rates, not the schedule.
/// @throws c10::ValueError  for another archive, or another number of groups; nothing has changed then
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const LRScheduler& scheduler);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, LRScheduler& scheduler);

/// The defaults of torch.optim.lr_scheduler.ReduceLROnPlateau.
struct ReduceLROnPlateauOptions {
  std::string_view mode = "min";            ///< "min": smaller metrics are better, as of a loss; "max": larger
  double factor = 0.1;                      ///< multiplies a learning rate that falls; in (0, 1)
  int64_t patience = 10;                    ///< metrics in a row without improvement that change nothing
  double threshold = 1e-4;                  ///< how much better than the best a metric must be
  std::string_view threshold_mode = "rel";  ///< "rel": a share of the best; "abs": a difference
  int64_t cooldown = 0;                     ///< metrics to ignore after a fall
  double min_lr = 0;
  double eps = 1e-8;  ///< smaller changes of a learning rate are not made
};

/// Lowers the learning rates when a metric, such as a validation loss, has stopped improving.
/// @code
/// mezzo::ReduceLROnPlateau scheduler(optimizer, {.mode = "max", .patience = 2});
/// scheduler.step(accuracy);  // after each evaluation
/// @endcode
/// Not thread-safe. Waits for the device of a learning rate that is a tensor.
/// @see torch.optim.lr_scheduler.ReduceLROnPlateau (Python). Same numbers.
class ReduceLROnPlateau {
 public:
  /// @throws c10::ValueError  for an option out of its range, or a negative learning rate
  explicit ReduceLROnPlateau(LearningRates lrs, const ReduceLROnPlateauOptions& options = {});
  virtual ~ReduceLROnPlateau() = default;

  /// @param metrics  NaN does not count as an improvement
  virtual void step(double metrics);
  std::vector<double> get_last_lr() const { return lrs_.get(); }

  /// Counters and learning rates by name; "best" only if there is one.
  std::map<std::string, double> state_dict() const;
  /// Sets the learning rates too.
  /// @throws c10::ValueError  for a missing or impossible entry; nothing has changed then
  void load_state_dict(const std::map<std::string, double>& state);

 protected:
  struct State {
    double best;
    int64_t bad = 0, good = 0;  // in a row
    int64_t cooldown_left = 0, warmup_left = 0, resets_in = 0;
  };
  double worst() const;
  bool improves(double metric) const;
  void lower() const;

  LearningRates lrs_;
  ReduceLROnPlateauOptions options_;
  State state_;
};

/// The defaults of transformers' GreedyLR.
struct GreedyLROptions : ReduceLROnPlateauOptions {
  GreedyLROptions()
      : ReduceLROnPlateauOptions{.factor = 0.95, .threshold = 1e-6, .threshold_mode = "abs", .min_lr = 1e-3} {}
  double max_lr = 1;
  int64_t warmup = 0;         ///< metrics to ignore after a rise
  int64_t reset_start = 500;  ///< falls at `min_lr` after which everything starts afresh
};

/// Lowers learning rates as ReduceLROnPlateau does, and raises them, divided by `factor`, when the
/// metric keeps improving (arXiv 2512.14527).
/// To resume a run, make it with the optimizer as at the start of the run, then load both: the state
/// does not have the initial learning rates.
/// @see transformers' GreedyLR (Python). Same numbers. Differs: no smoothing.
class GreedyLR : public ReduceLROnPlateau {
 public:
  explicit GreedyLR(LearningRates lrs, const GreedyLROptions& options = {});
  void step(double metrics) override;

 private:
  void raise() const;

  GreedyLROptions greedy_;
  std::vector<double> initial_lrs_;
};

/// For `torch::save` and `torch::load`: the state_dict.
/// @throws c10::ValueError  as `load_state_dict`
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const ReduceLROnPlateau& scheduler);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, ReduceLROnPlateau& scheduler);

}  // namespace mezzo
