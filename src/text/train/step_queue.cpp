#include "text/train/step_queue.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include "memory/out_of_memory.h"
#include "mezzo/optim/lr_schedule.h"
#include "text/io/printable.h"
#include "text/io/words.h"

namespace mezzo::text {
namespace {

/// Gradients that are still inf or NaN after as many cuts of the scale stay so. Counted here, since steps are also
/// skipped in fp32 and bf16, which have no scaler.
constexpr int64_t kMaxSkipsInARow = 50;

/// Drives a separate learning rate by the loss on dev, from --learning-rate, its largest value; nullptr for a schedule
/// that follows the steps.
std::unique_ptr<ReduceLROnPlateau> make_metric_scheduler(const TrainConfig& config) {
  if (!follows_metric(config.schedule)) return nullptr;
  const double peak = config.learning_rate.value();
  const auto lr = at::full({}, peak, at::kDouble);
  const auto configure = [&](ReduceLROnPlateauOptions& options) {
    options.factor = config.lr_factor.value_or(options.factor);
    options.patience = config.lr_patience;
    options.eps = 0;
    options.min_lr = peak * config.min_lr_ratio;
  };
  if (config.schedule != "greedy") {
    ReduceLROnPlateauOptions options;
    configure(options);
    return std::make_unique<ReduceLROnPlateau>(lr, options);
  }
  GreedyLROptions options;
  configure(options);
  options.max_lr = peak;
  return std::make_unique<GreedyLR>(lr, options);
}

}  // namespace

GradScalerOptions scaler_options(const TrainConfig& config, Precision precision) {
  const auto [is_fixed, scale] = config.parsed_loss_scale();
  return GradScalerOptions()
      .enabled(precision == Precision::kFloat16)
      .static_scale(is_fixed)
      .init_scale(scale)
      .growth_interval(config.growth_interval)
      .growth_factor(config.growth_factor)
      .backoff_factor(config.backoff_factor);
}

StepQueue::StepQueue(TrainingRun& run, TrainingModel& model)
    : run_(run),
      model_(model),
      accumulation_(run.config, run.setup, run.plan, model),
      diagnosis_(run, accumulation_, model),
      recorded_(run.config, run.setup, run.plan, [this](const StepBatches& batches) { return compute(batches); }),
      metric_scheduler_(make_metric_scheduler(run.config)),
      scaler_(scaler_options(run.config, run.setup.precision)),
      loss_scale_(scaler_.get_scale()),
      lr_(at::zeros({}, at::dtype(at::kDouble).device(run.setup.device))) {
  model_.set_lr(lr_);
  if (run.resumed && scaler_.is_enabled()) {
    scaler_.load_state_dict(run.resumed->scaler);
    loss_scale_ = scaler_.get_scale();
  }
  if (run.resumed && metric_scheduler_) {
    metric_scheduler_->load_state_dict(run.resumed->schedule);
  }
}

template <class Work>
auto StepQueue::with_advice_on_memory(int64_t number, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    const TrainConfig& config = run_.config;
    int64_t longest = 0;
    for (const MicroBatch& micro : run_.plan.micro_batches(run_.setup.train, number)) {
      for (const int64_t text : micro.indices) longest = std::max(longest, std::ssize(run_.setup.train.ids[text]));
    }
    std::vector<std::string> remedies;
    if (*config.batch_size > 1) {
      remedies.push_back(fmt::format("a --batch-size below {}, with --grad-accumulation above {} for the same updates",
                                     *config.batch_size, config.grad_accumulation));
    }
    if (!config.gradient_checkpointing) remedies.emplace_back("--gradient-checkpointing");
    if (!config.eager && can_record_steps(run_.config, run_.setup.device)) {
      remedies.emplace_back("--eager, which keeps no memory for recorded steps");
    }
    remedies.emplace_back("a shorter --max-length");
    TORCH_CHECK(false, "step ", number + 1, " ran out of memory on ", run_.setup.device.str(), ", with ",
                counted(*config.batch_size, "text"), " at once, the longest of ", counted(longest, "token"), "; pass ",
                fmt::format("{}", fmt::join(remedies, ", or ")));
  }
}

bool StepQueue::is_last_chance() const { return skips_in_a_row_ + 1 >= kMaxSkipsInARow; }

bool StepQueue::may_run_ahead() const {
  return queued_.size() == 1 && !run_.setup.device.is_cpu() && !run_.config.diagnose && !run_.config.dry_run &&
         skips_in_a_row_ == 0;
}

void StepQueue::push() {
  if (queued_.empty()) step_begin_ = Clock::now();
  const int64_t number = run_.state.step + std::ssize(queued_);
  queued_.push_back(with_advice_on_memory(number, [&] { return queue(number); }));
}

StepQueue::Step StepQueue::queue(int64_t number) {
  clock_.enter(&StepParts::batch);
  StepRecord record{.step = number + 1, .samples = run_.plan.samples(run_.setup.train, number)};
  auto micro_batches = run_.plan.micro_batches(run_.setup.train, number);
  choose_lr();
  const auto batches = accumulation_.collate(micro_batches, number);
  record.tokens = batches.tokens();
  const bool eagerly = run_.config.diagnose || is_last_chance();  // which look into the step
  const auto values = recorded_.take(batches) ? recorded_.run(batches, eagerly) : compute(batches);
  clock_.enter(nullptr);
  return {std::move(record), std::move(micro_batches), values, HostCopy(values)};
}

/// A skipped step does not advance the schedule. The device may know before the host whether the step before was
/// skipped, so the device chooses.
void StepQueue::choose_lr() {
  const at::NoGradGuard no_grad;
  const auto lr_after = [&](int64_t steps_taken) {
    return metric_scheduler_ ? metric_scheduler_->get_last_lr().front()
                             : *run_.config.learning_rate * run_.plan.schedule(steps_taken);
  };
  lr_.fill_(lr_after(run_.state.steps_taken + std::ssize(queued_)));
  if (!queued_.empty()) {
    lr_.masked_fill_(queued_.back().values[kFoundInf] != 0, lr_after(run_.state.steps_taken));
  }
}

/// Forward, backward and update, which may be recorded into a graph. Returns a StepValue each.
at::Tensor StepQueue::compute(const StepBatches& batches) {
  const auto loss = accumulation_.run(batches, [&](const at::Tensor& share) { return scaler_.scale(share); }, &clock_);
  clock_.enter(&StepParts::update);
  diagnosis_.look_at_gradients(loss_scale_, is_last_chance());
  if (scaler_.is_enabled()) {
    scaler_.step(model_.optimizer());  // unscales, clips, and skips the step if a gradient is inf or NaN
    scaler_.update();
  } else {
    model_.optimizer().step(nullptr);
  }
  model_.update_average();
  model_.zero_grad();
  const auto next_scale = scaler_.is_enabled() ? scaler_.scale_tensor() : at::ones_like(loss);
  return at::stack({loss.to(at::kDouble), model_.grad_norm().to(at::kDouble), model_.found_inf().to(at::kDouble),
                    next_scale.to(at::kDouble), lr_});
}

StepQueue::Finished StepQueue::pop(Requests here) {
  Step step = std::move(queued_.front());
  queued_.pop_front();
  const auto values = with_advice_on_memory(step.record.step - 1, [&] { return run_.ranks.wait(step.on_host); });
  const auto value = values.accessor<double, 1>();
  StepRecord& record = step.record;
  record.grad_norm = value[kGradNorm];
  record.skipped = value[kFoundInf] != 0;
  record.loss_scale = std::exchange(loss_scale_, value[kNextScale]);
  record.lr = value[kLr];
  auto totals = at::tensor(
      {value[kLoss], static_cast<double>(record.tokens), here.stop ? 1.0 : 0.0, here.save ? 1.0 : 0.0}, at::kDouble);
  run_.ranks.sum(totals);
  const auto total = totals.accessor<double, 1>();
  record.loss = total[0];
  record.tokens = static_cast<int64_t>(total[1]);
  record.seconds = seconds_since(step_begin_);
  step_begin_ = Clock::now();
  if (run_.setup.device.is_cpu()) record.parts = clock_.take();
  skips_in_a_row_ = record.skipped ? skips_in_a_row_ + 1 : 0;
  return {std::move(record), {total[2] != 0, total[3] != 0}, std::move(step.micro_batches)};
}

void StepQueue::look_into(const Finished& step) {
  const StepRecord& record = step.record;
  if (run_.config.diagnose) {
    diagnosis_.diagnose(record, step.micro_batches, /*is_new=*/skips_in_a_row_ == 1);
  }
  if (skips_in_a_row_ < kMaxSkipsInARow) return;
  const std::string cause = diagnosis_.find_cause(record, step.micro_batches).text;
  TORCH_CHECK(false, "training: the last ", skips_in_a_row_, " steps, up to step ", record.step,
              ", were skipped because gradients were inf or NaN (loss ", fixed(record.loss, 4), ", loss scale ",
              record.loss_scale, "); ", cause, "; ", diagnosis_.overflow() ? diagnosis_.overflow()->summary() : "",
              run_.config.diagnose ? "" : "; --diagnose finds the origin");
}

void StepQueue::evaluated(double dev_loss) {
  if (metric_scheduler_) metric_scheduler_->step(dev_loss);
}

void StepQueue::save(Checkpoint& checkpoint) const {
  checkpoint.scaler = scaler_.state_dict();
  if (metric_scheduler_) checkpoint.schedule = metric_scheduler_->state_dict();
}

}  // namespace mezzo::text
