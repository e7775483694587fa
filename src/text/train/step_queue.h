#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "memory/device_copy.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/lr_scheduler.h"
#include "text/train/gradient_accumulation.h"
#include "text/train/recorded_steps.h"
#include "text/train/step_clock.h"
#include "text/train/step_diagnosis.h"
#include "text/train/training_model.h"
#include "text/train/training_run.h"

namespace mezzo::text {

/// Enabled in fp16 only.
GradScalerOptions scaler_options(const TrainConfig& config, Precision precision);

/// The optimizer steps of a run, queued on the device. It computes a step while the host reads the results of the step
/// before. Every rank must make the same calls. For one thread.
class StepQueue {
 public:
  /// Requests after a step. One of any rank is one of all.
  struct Requests {
    bool stop = false, save = false;
  };
  /// A step that the device has finished.
  struct Finished {
    StepRecord record;  ///< loss and tokens of all ranks; `epoch` is left to the caller
    Requests requests;
    std::vector<MicroBatch> micro_batches;
  };

  /// Both must outlive this. Takes over the state of `run.resumed`, if there is one.
  StepQueue(TrainingRun& run, TrainingModel& model);

  bool is_empty() const { return queued_.empty(); }
  /// Whether a further step may be queued before the results of the last one are known.
  bool may_run_ahead() const;

  /// Queues the next step after `run.state` and the queue. Waits for the device only with `--diagnose`, and before the
  /// last skip that ends the run.
  /// @throws c10::Error  if memory runs out, with what to do
  void push();

  /// Waits for the first step of the queue. Collective.
  Finished pop(Requests here);

  /// With `--diagnose`, finds out why gradients of the step were inf, NaN or 0. Collective.
  /// @throws c10::Error  after 50 skipped steps in a row
  void look_into(const Finished& step);

  /// Tells a schedule that follows the loss on dev.
  void evaluated(double dev_loss);

  /// Puts the states of the loss scale and the schedule into `checkpoint`.
  void save(Checkpoint& checkpoint) const;

  /// Spread of gradients since the last call; nullopt without `--diagnose`.
  std::optional<DiagnoseRecord> take_gradients() { return diagnosis_.take_gradients(run_.state.step, loss_scale_); }

 private:
  struct Step {
    StepRecord record;
    std::vector<MicroBatch> micro_batches;
    at::Tensor values;  // float64, by StepValue, on the device; the next step may overwrite them
    HostCopy on_host;   // of `values`
  };
  enum StepValue { kLoss, kGradNorm, kFoundInf, kNextScale, kLr };

  Step queue(int64_t number);
  at::Tensor compute(const StepBatches& batches);
  void choose_lr();
  bool is_last_chance() const;
  template <class Work>
  auto with_advice_on_memory(int64_t number, const Work& work);

  TrainingRun& run_;
  TrainingModel& model_;
  GradientAccumulation accumulation_;
  StepDiagnosis diagnosis_;
  RecordedSteps recorded_;
  std::unique_ptr<ReduceLROnPlateau> metric_scheduler_;  // of the schedules that follow the loss on dev
  GradScaler scaler_;
  double loss_scale_;
  at::Tensor lr_;  // of the step to queue: 0-dim, float64, on the model's device
  StepClock clock_;
  std::deque<Step> queued_;
  int64_t skips_in_a_row_ = 0;
  Clock::time_point step_begin_;
};

}  // namespace mezzo::text
