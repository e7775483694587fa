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

/// The learning rates that a scheduler sets, one for each parameter group. Converts from a
/// `torch::optim::Optimizer`, such as a ZeroRedundancyOptimizer, and from a 0-dim tensor. Writes in
/// place to that tensor, or to the tensor of the optimizer's `set_lr`. Holds a reference to its
/// source.
class LearningRates {
 public:
  /// The learning rates of an optimizer, which must outlive this object.
  LearningRates(torch::optim::Optimizer& optimizer);
  /// @throws c10::ValueError  for a tensor with dimensions, or of a dtype that is not floating
  LearningRates(at::Tensor lr);

  /// The current values. Waits for the device of a tensor.
  std::vector<double> get() const { return get_(); }
  /// @param lrs  as many values as get() returns
  /// @throws c10::ValueError  for a value that is negative or not finite; nothing has changed then
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
/// To resume a run, construct it with the optimizer as at the start of the run, then `torch::load`
/// both. Not thread-safe. Calls wait for a device only if their comment says so.
class LRScheduler {
 public:
  /// Sets the learning rates of step 0. If they are a tensor, waits once for its device.
  /// @throws c10::ValueError  for a factor of the first two steps that is negative or not finite
  LRScheduler(LearningRates lrs, LrSchedule schedule);

  /// For a learning rate that kernels read on the device, also in a CUDA graph. The factors are in
  /// a table on the device, and `step` never waits. Learning rates are bit-identical to the host's.
  /// @code
  /// optimizer.set_lr(lr);  // a 0-dim float64 tensor on the device
  /// mezzo::LRScheduler scheduler(lr, schedule, /*num_steps=*/1000);
  /// scaler.step(optimizer);
  /// scheduler.step(optimizer.found_inf());
  /// @endcode
  /// @param lr  a tensor that holds the initial learning rate
  /// @param num_steps  steps of the run, at least 1; afterwards the learning rate stays constant
  /// @throws c10::ValueError  also for a negative or non-finite factor of any of these steps
  LRScheduler(const at::Tensor& lr, const LrSchedule& schedule, int64_t num_steps);

  /// A copy would drive the same learning rates.
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;
  /// Moves are allowed; the source may only be destroyed or assigned to.
  LRScheduler(LRScheduler&&) noexcept = default;
  /// Replaces this scheduler.
  LRScheduler& operator=(LRScheduler&&) noexcept = default;

  /// Counts one optimizer step and sets its learning rates.
  /// @param found_inf  One number of any dtype and device. If it is not 0, the step was skipped and
  ///     nothing changes. Undefined: the step was taken. Without a table, a defined one waits.
  /// @throws c10::ValueError  for a factor that is negative or not finite
  void step(const at::Tensor& found_inf = {});

  /// Steps taken so far. With a table on a device, waits for the device.
  int64_t steps() const;
  /// Continues from this number of steps.
  /// @throws c10::ValueError  for a negative number
  void set_steps(int64_t steps);
  /// The current learning rates, one for each parameter group. Waits for the device of a tensor.
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

/// For `torch::save`: writes steps and initial learning rates, not the schedule.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const LRScheduler& scheduler);
/// For `torch::load`.
/// @throws c10::ValueError  for another archive, or another number of groups; nothing has changed
///     then
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, LRScheduler& scheduler);

/// The options of torch.optim.lr_scheduler.ReduceLROnPlateau, with the same defaults.
struct ReduceLROnPlateauOptions {
  std::string_view mode = "min";            ///< "min": smaller metrics are better, as of a loss; "max": larger
  double factor = 0.1;                      ///< multiplies a learning rate that falls; in (0, 1)
  int64_t patience = 10;                    ///< metrics in a row without improvement that change nothing
  double threshold = 1e-4;                  ///< necessary improvement over the best metric
  std::string_view threshold_mode = "rel";  ///< "rel": a share of the best; "abs": a difference
  int64_t cooldown = 0;                     ///< metrics to ignore after a fall
  double min_lr = 0;                        ///< smallest learning rate
  double eps = 1e-8;                        ///< ignores smaller changes of a learning rate
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

  /// Takes one metric, and lowers the learning rates after `patience`.
  /// @param metrics  NaN does not count as an improvement
  virtual void step(double metrics);
  /// The current learning rates, one for each parameter group.
  std::vector<double> get_last_lr() const { return lrs_.get(); }

  /// Counters and learning rates by name; "best" only after the first metric.
  std::map<std::string, double> state_dict() const;
  /// Loads a `state_dict`, and sets the learning rates.
  /// @throws c10::ValueError  for a missing or impossible entry; nothing has changed then
  void load_state_dict(const std::map<std::string, double>& state);

 protected:
  /// Counters and the best metric.
  struct State {
    double best;                ///< best metric so far
    int64_t bad = 0;            ///< metrics in a row without improvement
    int64_t good = 0;           ///< metrics in a row with improvement
    int64_t cooldown_left = 0;  ///< metrics to ignore after a fall
    int64_t warmup_left = 0;    ///< metrics to ignore after a rise
    int64_t resets_in = 0;      ///< falls at `min_lr` until a reset
  };
  /// The worst possible metric in this mode.
  double worst() const;
  /// Whether `metric` improves on the best by `threshold`.
  bool improves(double metric) const;
  /// Multiplies the learning rates by `factor`, down to `min_lr`.
  void lower() const;

  LearningRates lrs_;                 ///< the learning rates to set
  ReduceLROnPlateauOptions options_;  ///< as given to the constructor
  State state_;                       ///< changes with each metric
};

/// The options of transformers' GreedyLR, with the same defaults.
struct GreedyLROptions : ReduceLROnPlateauOptions {
  GreedyLROptions()
      : ReduceLROnPlateauOptions{.factor = 0.95, .threshold = 1e-6, .threshold_mode = "abs", .min_lr = 1e-3} {}
  double max_lr = 1;          ///< largest learning rate
  int64_t warmup = 0;         ///< metrics to ignore after a rise
  int64_t reset_start = 500;  ///< number of falls at `min_lr` before the scheduler resets
};

/// Lowers learning rates as ReduceLROnPlateau does. If the metric keeps improving, raises them:
/// divides them by `factor` (arXiv 2512.14527).
///
/// To resume a run, construct it with the optimizer as at the start of the run, then load both. The
/// state lacks the initial learning rates.
/// @see transformers' GreedyLR (Python). Same numbers. Differs: no smoothing.
class GreedyLR : public ReduceLROnPlateau {
 public:
  /// @throws c10::ValueError  for an option out of its range, or a negative learning rate
  explicit GreedyLR(LearningRates lrs, const GreedyLROptions& options = {});
  void step(double metrics) override;

 private:
  void raise() const;

  GreedyLROptions greedy_;
  std::vector<double> initial_lrs_;
};

/// For `torch::save`: writes the state_dict.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const ReduceLROnPlateau& scheduler);
/// For `torch::load`.
/// @throws c10::ValueError  as `load_state_dict`
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, ReduceLROnPlateau& scheduler);

}  // namespace mezzo
