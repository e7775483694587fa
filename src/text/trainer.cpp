#include "mezzo/text/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/amp/overflow_report.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/metric_schedule.h"
#include "mezzo/optim/optimizer.h"
#include "mezzo/text/checkpoint.h"
#include "mezzo/text/inference.h"
#include "mezzo/text/pretrained.h"
#include "text/diagnosis.h"
#include "text/run_output.h"
#include "text/run_setup.h"
#include "text/training_parts.h"

namespace mezzo::text {
namespace {

using Clock = std::chrono::steady_clock;

/// Gradients that stay inf or NaN however far the scale falls will not come back. Counted here and not by the scaler:
/// without one, in fp32 and bf16, steps are skipped too.
constexpr int64_t kMaxSkipsInARow = 50;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Trainer {
 public:
  Trainer(const TrainConfig& config, const std::function<bool()>& stop_requested)
      : config_(config),
        stop_requested_(stop_requested),
        setup_(set_up_run(config)),
        plan_(plan_run(config, static_cast<int64_t>(setup_.train.ids.size()))),
        identity_(result_settings(config, setup_)),
        resumed_(find_checkpoint(config, identity_)),
        output_(config, setup_, plan_, resumed_ ? std::optional(resumed_->step) : std::nullopt),
        parameters_(named_parameters(*setup_.model)),
        metric_schedule_(make_metric_schedule(config)),
        scaler_(scaler_options(config, setup_.precision)) {
    if (resumed_) {
      load_weights(*resumed_, parameters_);
    }
    if (config.master_weights) {
      masters_.emplace(parameters_, autocast_dtype(setup_.precision).value(),
                       MasterWeightsOptions().keep_norms_fp32(config.keep_norms_fp32));
      parameters_ = masters_->masters();
    }
    optimizer_ = make_optimizer(config, parameters_, setup_.model->config().num_hidden_layers);
    if (resumed_) {
      restore(*resumed_);
      resumed_.reset();  // unmaps the files
    }
  }

  TrainResult run() {
    started_ = Clock::now();
    setup_.model->train();
    bool stopped = eval_is_due() && !evaluate_dev();  // when stopped between a step and its evaluation
    while (!stopped && counters_.step < plan_.total_steps) {
      train_step();
      stopped = stop_requested_();
      if (!stopped && eval_is_due()) {
        stopped = !evaluate_dev();
      }
      const bool save_is_due = config_.save_every > 0 && counters_.step % config_.save_every == 0;
      if (stopped || save_is_due) {
        save();
      }
    }
    if (stopped) {
      output_.stopped(counters_.step);
      return {.finished = false, .steps = counters_.step, .report = std::nullopt};
    }
    return finish();
  }

 private:
  /// One optimizer step over `grad_accumulation` micro-batches.
  void train_step() {
    const auto begin = Clock::now();
    StepRecord record{.step = counters_.step + 1};
    record.lr = metric_schedule_ ? metric_schedule_->lr()
                                 : config_.learning_rate * plan_.schedule.factor(counters_.steps_taken);
    optimizer_->set_lr(record.lr);

    const auto micro_batches = plan_.micro_batches(setup_.train, counters_.step);
    for (const auto& micro : micro_batches) {
      record.samples += static_cast<int64_t>(micro.indices.size());
    }
    std::optional<FiniteTracer> tracer;
    if (config_.diagnose && diagnosis_.is_first_steps()) {
      tracer.emplace();
    }
    const auto loss =
        accumulate_gradients(micro_batches, record, [&](const at::Tensor& share) { return scaler_.scale(share); });
    auto first_op = tracer ? tracer->first() : std::nullopt;
    tracer.reset();
    const auto [grad_norm, found_inf] = update_weights();

    // The one time a step waits for the device: whether it was skipped decides the next learning rate.
    const auto values = at::stack({loss, grad_norm.to(at::kFloat), found_inf.to(at::kFloat)}).cpu();
    const auto value = values.accessor<float, 1>();
    record.loss = value[0];
    record.grad_norm = value[1];
    record.skipped = value[2] != 0;
    record.loss_scale = loss_scale_;
    count_step(record, seconds_since(begin));
    record.epoch = plan_.epochs_after(counters_.step);
    output_.step(record);
    if (config_.diagnose) {
      diagnose(record, first_op || !record.skipped ? first_op : retrace(micro_batches, record));
    }
    check_not_stuck(record);
    loss_scale_ = scaler_.get_scale();
  }

  /// Forward and backward of each micro-batch, from its share of the loss as `scale` returns it. Returns the mean loss.
  at::Tensor accumulate_gradients(const std::vector<MicroBatch>& micro_batches,
                                  StepRecord& record,
                                  const std::function<at::Tensor(const at::Tensor&)>& scale) {
    auto loss = at::zeros({}, at::TensorOptions(at::kFloat).device(setup_.device));
    for (const auto& micro : micro_batches) {
      const auto batch =
          collate(setup_.train, micro.indices, plan_.batching, config_.max_length, setup_.model->config().pad_token_id);
      // Each text weighs the same, however texts fall into micro-batches.
      const auto share = summed_loss(batch.to(setup_.device), micro.number) / record.samples;
      scale(share).backward();
      if (masters_ && micro_batches.size() > 1) {
        masters_->accumulate_gradients();  // sums in float32
      }
      loss += share.detach();
      record.tokens += batch.num_tokens;
    }
    return loss;
  }

  /// Repeats a skipped step under the tracer: same weights, texts, dropout and scale, so the same overflow.
  std::optional<NonFiniteOp> retrace(const std::vector<MicroBatch>& micro_batches, StepRecord record) {
    const FiniteTracer tracer;
    accumulate_gradients(micro_batches, record, [&](const at::Tensor& share) { return share * record.loss_scale; });
    optimizer_->zero_grad();
    return tracer.first();
  }

  void diagnose(const StepRecord& record, const std::optional<NonFiniteOp>& first_op) {
    if (overflow_ && !overflow_->empty()) {
      output_.diagnose(describe(*overflow_, record.step, record.loss_scale));
    }
    if (first_op) {
      DiagnoseRecord found;
      found.step = record.step;
      found.kind = "first_op";
      found.loss_scale = record.loss_scale;
      found.text = first_op->to_string();
      output_.diagnose(found);
    }
    if (diagnosis_.gradients_are_due()) {
      if (const auto gradients = diagnosis_.take_gradients(record.step, record.loss_scale)) {
        output_.diagnose(*gradients);
      }
    }
  }

  at::Tensor summed_loss(const PackedBatch& batch, uint32_t micro_batch) {
    const auto dtype = autocast_dtype(setup_.precision);
    const AutocastGuard autocast(setup_.device.type(), dtype.value_or(at::kBFloat16), dtype.has_value());
    const auto logits = setup_.model->forward(batch, {config_.seed, micro_batch});
    return at::cross_entropy_loss(logits.to(at::kFloat), batch.labels, /*weight=*/{}, at::Reduction::Sum);
  }

  /// Steps, clipped. Returns the norm of the true gradients, and 1 where the step was skipped, both on the device.
  std::pair<at::Tensor, at::Tensor> update_weights() {
    look_at_gradients();
    if (scaler_.is_enabled()) {
      scaler_.step(*optimizer_);
      scaler_.update();
    } else {
      optimizer_->step();
    }
    optimizer_->zero_grad();
    return {optimizer_->grad_norm(), optimizer_->found_inf()};
  }

  /// Waits for the device, so only where asked to, and in the step that may turn out to be one skip too many.
  void look_at_gradients() {
    overflow_.reset();
    if (config_.diagnose || skips_in_a_row_ + 1 >= kMaxSkipsInARow) {
      overflow_ = overflow_report(*optimizer_);
    }
    if (config_.diagnose) {
      diagnosis_.look_at(*optimizer_, loss_scale_, *overflow_);
    }
  }

  void count_step(StepRecord& record, double seconds) {
    record.seconds = seconds;
    counters_.step += 1;
    counters_.steps_taken += record.skipped ? 0 : 1;
    counters_.samples += record.samples;
    counters_.tokens += record.tokens;
    counters_.step_seconds += seconds;
    skips_in_a_row_ = record.skipped ? skips_in_a_row_ + 1 : 0;
  }

  void check_not_stuck(const StepRecord& record) const {
    TORCH_CHECK(skips_in_a_row_ < kMaxSkipsInARow, "training: the last ", skips_in_a_row_, " steps, up to step ",
                record.step, ", were skipped because gradients were inf or NaN (loss ", record.loss, ", loss scale ",
                record.loss_scale, "); ", overflow_ ? overflow_->summary() : "",
                "; lower --learning-rate, clip with --max-grad-norm 1, use another --precision, or see where it begins "
                "with --diagnose");
  }

  bool eval_is_due() const {
    if (setup_.dev.ids.empty() || counters_.step == 0 || counters_.last_eval_step == counters_.step) {
      return false;
    }
    const bool is_last = counters_.step >= plan_.total_steps;
    return is_last || (config_.eval_every > 0 && counters_.step % config_.eval_every == 0);
  }

  /// Returns false when it was stopped.
  bool evaluate_dev() {
    const auto evaluation = evaluate("dev", setup_.dev);
    if (!evaluation) {
      return false;
    }
    counters_.last_eval_step = counters_.step;
    if (metric_schedule_) {
      metric_schedule_->observe(evaluation->loss);
    }
    if (!counters_.best_accuracy || evaluation->report.accuracy > *counters_.best_accuracy) {
      counters_.best_accuracy = evaluation->report.accuracy;
      output_.save_model(*setup_.model, weights());
    }
    return true;
  }

  struct Evaluation {
    ClassificationReport report;
    double loss;
  };

  /// Returns nullopt when it was stopped.
  std::optional<Evaluation> evaluate(const std::string& split, const TokenizedTexts& texts) {
    const auto begin = Clock::now();
    const auto logits =
        predict_logits(*setup_.model, texts, setup_.precision, [&](int64_t) { return !stop_requested_(); });
    if (!logits.defined()) {
      return std::nullopt;
    }
    auto report = classification_report(texts.labels, predicted_labels(logits), setup_.model->config().label_names);
    const double loss = mean_cross_entropy(logits, texts.labels);
    output_.eval({.step = counters_.step,
                  .split = split,
                  .loss = loss,
                  .accuracy = report.accuracy,
                  .macro_f1 = report.macro_avg.f1,
                  .seconds = seconds_since(begin)});
    return Evaluation{std::move(report), loss};
  }

  TrainResult finish() {
    const double train_seconds = total_seconds();
    output_.training_done();
    if (const auto gradients = diagnosis_.take_gradients(counters_.step, loss_scale_)) {
      output_.diagnose(*gradients);
    }
    if (counters_.best_accuracy) {
      load_pretrained(*setup_.model, config_.output, config_.seed);  // the best, for the report
    } else {
      output_.save_model(*setup_.model, weights());
    }
    TrainResult result{.finished = true, .steps = counters_.step, .report = std::nullopt};
    const bool has_test = !setup_.test.ids.empty();
    if (has_test || !setup_.dev.ids.empty()) {
      auto evaluation = evaluate(has_test ? "test" : "dev", has_test ? setup_.test : setup_.dev);
      if (!evaluation) {
        save();
        output_.stopped(counters_.step);
        return {.finished = false, .steps = counters_.step, .report = std::nullopt};
      }
      result.report = std::move(evaluation->report);
    }
    output_.end({.steps = counters_.step,
                 .minutes = train_seconds / 60,
                 .samples_per_second = static_cast<double>(counters_.samples) / counters_.step_seconds,
                 .tokens_per_second = static_cast<double>(counters_.tokens) / counters_.step_seconds,
                 .peak_memory_bytes = peak_memory_bytes()},
                result.report, has_test ? "test" : "dev");
    return result;
  }

  double total_seconds() const { return counters_.seconds + seconds_since(started_); }

  /// The float32 weights: the masters, where the model itself is rounded.
  std::vector<std::pair<std::string, at::Tensor>> weights() const {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const NamedParameter& parameter : parameters_) {
      tensors.emplace_back(parameter.name, parameter.tensor.detach());
    }
    return tensors;
  }

  void save() {
    Checkpoint checkpoint = counters_;
    checkpoint.seconds = total_seconds();
    checkpoint.settings = identity_;
    for (const auto& [key, value] : scaler_.state_dict()) {
      checkpoint.scaler[key] = value.toDouble();
    }
    checkpoint.schedule = metric_schedule_ ? metric_schedule_->state_dict() : std::map<std::string, double>();
    checkpoint.weights = weights();
    for (const auto& entry : optimizer_->state_dict()) {
      checkpoint.optimizer.push_back(entry);
    }
    save_checkpoint(checkpoint, config_.output / "checkpoints", config_.keep);
  }

  void restore(const Checkpoint& checkpoint) {
    optimizer_->load_state_dict({checkpoint.optimizer.begin(), checkpoint.optimizer.end()});
    if (scaler_.is_enabled()) {
      scaler_.load_state_dict(scaler_state(checkpoint));
      loss_scale_ = scaler_.get_scale();
    }
    if (metric_schedule_) {
      metric_schedule_->load_state_dict(checkpoint.schedule);
    }
    counters_ = checkpoint;
    counters_.weights.clear();
    counters_.optimizer.clear();
  }

  const CpuHalfCompute fast_half_compute_;
  const TrainConfig& config_;
  const std::function<bool()>& stop_requested_;
  RunSetup setup_;
  const RunPlan plan_;
  const std::map<std::string, std::string> identity_;
  std::optional<Checkpoint> resumed_;
  RunOutput output_;
  std::vector<NamedParameter> parameters_;  // what the optimizer updates: the masters, where there are any
  std::optional<MasterWeights> masters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<MetricSchedule> metric_schedule_;  // learning rates of the schedules that follow the loss on dev
  GradScaler scaler_;
  double loss_scale_ = scaler_.get_scale();
  Checkpoint counters_;  // its tensors stay empty
  int64_t skips_in_a_row_ = 0;
  Diagnosis diagnosis_;
  std::optional<OverflowReport> overflow_;  // of the last step's gradients, where they were looked at
  Clock::time_point started_;
};

}  // namespace

TrainResult train(const TrainConfig& config, const std::function<bool()>& stop_requested) {
  config.validate();
  if (config.threads > 0) {
    at::set_num_threads(static_cast<int>(config.threads));
  }
  return Trainer(config, stop_requested).run();
}

}  // namespace mezzo::text
