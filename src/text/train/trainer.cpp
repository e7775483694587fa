#include "mezzo/text/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <iterator>
#include <utility>

#include "memory/device_copy.h"
#include "memory/out_of_memory.h"
#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/lr_scheduler.h"
#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/inference/inference.h"
#include "mezzo/text/io/error_message.h"
#include "mezzo/text/machine/threads.h"
#include "mezzo/text/models/pretrained.h"
#include "text/machine/machine_memory.h"
#include "text/models/lora.h"
#include "text/run/environment.h"
#include "text/run/recorded_run.h"
#include "text/run/resuming.h"
#include "text/run/run_folder.h"
#include "text/run/run_identity.h"
#include "text/run/run_keeper.h"
#include "text/setup/ranks.h"
#include "text/setup/run_files.h"
#include "text/setup/run_plan.h"
#include "text/setup/run_setup.h"
#include "text/train/batch_size.h"
#include "text/train/clock.h"
#include "text/train/deterministic_guard.h"
#include "text/train/dry_run.h"
#include "text/train/finished_run.h"
#include "text/train/gradient_accumulation.h"
#include "text/train/out_of_memory.h"
#include "text/train/recorded_steps.h"
#include "text/train/step_diagnosis.h"
#include "text/train/training_model.h"
#include "text/train/training_parts.h"
#include "text/words/printable.h"
#include "text/words/words.h"

namespace mezzo::text {
namespace {

/// Gradients that stay inf or NaN however far the scale falls will not come back. Counted here and
/// not by the scaler: without one, in fp32 and bf16, steps are skipped too.
constexpr int64_t kMaxSkipsInARow = 50;

std::vector<std::pair<std::string, at::Tensor>> clone(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<std::pair<std::string, at::Tensor>> copies;
  for (const auto& [name, tensor] : tensors) {
    copies.emplace_back(name, tensor.clone());
  }
  return copies;
}

class Trainer {
 public:
  Trainer(TrainConfig& config, const std::function<bool()>& stop_requested, distributed::ProcessGroup* group)
      : stop_requested_(stop_requested),
        ranks_(group),
        keeper_(config, ranks_, [this] { return state(); }),
        setup_(ranks_.together([&] { return set_up_run(config); })),
        resumed_(agree_on_start(config, ranks_)),
        config_(with_batch_size(config, setup_, ranks_, flags_before(config, resumed_))),
        plan_(plan_run(config_, static_cast<int64_t>(setup_.train.ids.size()), ranks_)),
        identity_(identity_of(config_, setup_)),
        metric_scheduler_(make_metric_scheduler(config_)),
        scaler_(scaler_options(config_, setup_.precision)) {
    check_same_on_all(identity_, setup_, ranks_);
    ranks_.all_or_none([&] {
      const std::string difference = resumed_ ? describe_difference(*resumed_, identity_, *setup_.task) : "";
      TORCH_CHECK_VALUE(difference.empty(), "--resume: the checkpoint is of another run: ", difference,
                        "; resume with the same settings, or start afresh in another --output");
      keeper_.check(resumed_, identity_, plan_.total_steps);
      if (!config_.reproduces.empty()) {
        std::ranges::move(differences_from(config_.reproduces, identity_, environment()),
                          std::back_inserter(setup_.notes));
      }
    });
    if (config_.dry_run) {
      return;  // steps are tried when it is known that they may fit
    }
    prepare_model();
    stop_requested_();        // from here on it is heeded, before the first step
    ranks_.all_or_none([&] {  // all else is in order: now the folder is touched
      if (const std::string run = keeper_.open(config_, setup_, plan_, identity_, resumed_); ranks_.is_main()) {
        counters_.run = run;
      }
    });
    resumed_.reset();
  }

  TrainResult run() {
    TrainResult result;
    try {
      ranks_.guard([&] { result = config_.dry_run ? dry_run() : run_steps(); });
    } catch (const std::exception& error) {
      keeper_.failed(counters_.step, message_of(error));
      throw;
    }
    if (keeper_.output() != nullptr && result.finished) {
      keeper_.output()->print_summary();  // a stdout that cannot be written fails the program, not the run
    }
    return result;
  }

 private:
  /// A step that the device may still be at.
  struct QueuedStep {
    StepRecord record;
    std::vector<MicroBatch> micro_batches;
    at::Tensor values;  ///< a StepValue each, float64, on the device; the next step overwrites them
    HostCopy on_host;   ///< the same
  };
  enum StepValue { kLoss, kGradNorm, kFoundInf, kNextScale, kLr };

  void prepare_model() {
    setup_.model->set_gradient_checkpointing(config_.gradient_checkpointing);
    model_.emplace(config_, setup_, ranks_, resumed_ ? &*resumed_ : nullptr);
    accumulation_.emplace(config_, setup_, plan_, *model_);
    diagnosis_.emplace(config_, setup_, ranks_, *accumulation_, *model_, keeper_);
    recorded_.emplace(config_, setup_, plan_, [this](const StepBatches& batches) { return compute_step(batches); });
    lr_ = at::zeros({}, at::dtype(at::kDouble).device(setup_.device));
    model_->set_lr(lr_);
    if (resumed_) {
      restore(*resumed_);
    }
  }

  TrainResult dry_run() {
    const PlannedWork work = look_ahead(config_, setup_.train, plan_);
    const auto estimate = estimate_memory(*setup_.model, setup_.precision, config_, plan_.ranks, work.largest);
    MachineMemory memory = machine_memory(setup_.device);
    // Where it may be too much, trying would be worse than not knowing. The
    // weights are there already.
    const bool may_fit = estimate.total - estimate.weights < memory.available;
    if (setup_.device.is_cpu()) {
      memory.available += resident_memory_bytes();  // as a run has from its start
    }
    std::optional<MeasuredSteps> measured;
    if (!ranks_.any(!may_fit)) {
      prepare_model();
      resumed_.reset();
      setup_.model->train();
      measured = try_steps(setup_, ranks_, work, [&](int64_t step) {
        counters_.step = step;
        return train_step();
      });
    }
    const bool stopped = ranks_.any(stop_requested_());
    if (ranks_.is_main() && !stopped) {
      print_dry_run(config_, setup_, plan_, work, memory, measured);
    }
    return {.finished = !stopped, .steps = 0, .evaluation = std::nullopt};
  }

  TrainResult run_steps() {
    started_ = saved_ = Clock::now();
    if (ranks_.any(stop_requested_())) {
      keeper_.save_where_missing(counters_.step);
      return stopped();
    }
    setup_.model->train();
    bool stop = eval_is_due() && !evaluate_dev();  // when stopped between a step and its evaluation
    if (stop) {
      keeper_.end_if_failed();
      keeper_.save_where_missing(counters_.step);
    }
    while (!stop && counters_.step < last_step() && !is_out_of_patience()) {
      stop = train_step();
      if (queued_) {
        continue;
      }
      bool save_is_due = (plan_.save_every > 0 && (is_due(plan_.save_every) || is_last_step())) || save_is_asked_;
      if (!stop && save_is_due && is_last_step() && !is_due(plan_.eval_every)) {
        save_in_between();  // of a run that is extended, this is no step that is evaluated
        save_is_due = false;
      }
      if (!stop && eval_is_due()) {
        stop = !evaluate_dev();
        save_is_due = save_is_due || (plan_.save_every > 0 && is_out_of_patience());
      }
      if (stop) {
        keeper_.end_if_failed();
        keeper_.save();
      } else if (save_is_due) {
        save_in_between();
      }
    }
    if (!stop && counters_.step < plan_.total_steps && !is_out_of_patience()) {
      keeper_.end_if_failed();
      if (has_unsaved_evaluation_) {
        keeper_.save();
      } else {
        keeper_.save_where_missing(counters_.step);
      }
      TrainResult result = stopped();
      result.paused = true;
      result.saves_failed = ranks_.any(!keeper_.failed_saves().empty());
      return result;
    }
    return stop ? stopped() : finish();
  }

  void save_in_between() {
    keeper_.save_in_between();
    has_unsaved_evaluation_ = false;
    save_is_asked_ = false;
    saved_ = Clock::now();
  }

  /// Of this process: where it ends, or pauses.
  int64_t last_step() const {
    const double paused_after = std::ceil(config_.pause_at * static_cast<double>(plan_.total_steps));
    return std::clamp<int64_t>(static_cast<int64_t>(paused_after), std::min<int64_t>(1, plan_.total_steps),
                               plan_.total_steps);
  }
  bool is_last_step() const { return counters_.step >= plan_.total_steps; }
  bool is_due(int64_t every) const { return every > 0 && counters_.step % every == 0; }

  /// One optimizer step over this rank's micro-batches. Returns whether to stop,
  /// which any rank may ask for.
  bool train_step() {
    try {
      return take_step();
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) {
        throw;
      }
      int64_t longest = 0;
      const int64_t step = counters_.step + (queued_ ? 1 : 0);
      for (const MicroBatch& micro : plan_.micro_batches(setup_.train, step)) {
        for (const int64_t text : micro.indices) {
          longest = std::max(longest, std::ssize(setup_.train.ids[text]));
        }
      }
      TORCH_CHECK(false, describe_out_of_memory(config_, step + 1, setup_.device, ranks_.size(), longest));
    }
  }

  /// Queues a step. What came of the one before is read meanwhile, so that the device has always
  /// something to do; what came of this one at once where that decides what is next.
  bool take_step() {
    if (!queued_) {
      step_begin_ = Clock::now();
    }
    QueuedStep step = queue_step(counters_.step + (queued_ ? 1 : 0));
    bool stop = queued_ && finish_step();
    queued_.emplace(std::move(step));
    if (stop || !may_run_ahead()) {
      stop = finish_step() || stop;
    }
    return stop;
  }

  /// Never waits for the device, but for `--diagnose` and at the last chance.
  QueuedStep queue_step(int64_t number) {
    clock_.enter(&StepParts::batch);
    StepRecord record{.step = number + 1, .samples = plan_.samples(setup_.train, number)};
    auto micro_batches = plan_.micro_batches(setup_.train, number);
    choose_lr();
    const auto batches = accumulation_->collate(micro_batches, number);
    record.tokens = batches.tokens();
    const bool eagerly = config_.diagnose || is_last_chance();  // which look into it
    const auto values = recorded_->take(batches) ? recorded_->run(batches, eagerly) : compute_step(batches);
    clock_.enter(nullptr);
    return {std::move(record), std::move(micro_batches), values, HostCopy(values)};
  }

  /// Forward, backward and update, which may be recorded into a graph. Returns a StepValue each.
  at::Tensor compute_step(const StepBatches& batches) {
    const auto loss =
        accumulation_->run(batches, [&](const at::Tensor& share) { return scaler_.scale(share); }, &clock_);
    clock_.enter(&StepParts::update);
    const auto [grad_norm, found_inf] = update_weights();
    const auto next_scale = scaler_.is_enabled() ? scaler_.scale_tensor() : at::ones_like(loss);
    return at::stack(
        {loss.to(at::kDouble), grad_norm.to(at::kDouble), found_inf.to(at::kDouble), next_scale.to(at::kDouble), lr_});
  }

  /// Whether the run ends if this step is skipped, too.
  bool is_last_chance() const { return skips_in_a_row_ + 1 >= kMaxSkipsInARow; }

  /// A step that was skipped does not advance the schedule. Whether the one before was, the device may
  /// know before the host does, so it chooses.
  void choose_lr() {
    const at::NoGradGuard no_grad;
    const auto lr_after = [&](int64_t steps_taken) {
      return metric_scheduler_ ? metric_scheduler_->get_last_lr().front()
                               : *config_.learning_rate * plan_.schedule(steps_taken);
    };
    lr_.fill_(lr_after(counters_.steps_taken + (queued_ ? 1 : 0)));
    if (queued_) {
      lr_.masked_fill_(queued_->values[kFoundInf] != 0, lr_after(counters_.steps_taken));
    }
  }

  /// The one time a step waits for the device. Returns whether to stop, which any rank may ask for.
  bool finish_step() {
    QueuedStep done = *std::exchange(queued_, std::nullopt);
    StepRecord& record = done.record;
    const auto value = done.on_host.wait().accessor<double, 1>();
    record.loss = value[kLoss];
    record.grad_norm = value[kGradNorm];
    record.skipped = value[kFoundInf] != 0;
    record.loss_scale = std::exchange(loss_scale_, value[kNextScale]);
    record.lr = value[kLr];
    const bool stop = add_up(record);
    count_step(record, seconds_since(step_begin_));
    step_begin_ = Clock::now();
    record.epoch = plan_.epochs_after(counters_.step);
    keeper_.look_after_saving();
    keeper_.put_out([&](RunOutput& output) {
      output.step(record);
      keeper_.mend_best_model(counters_.best, BestModelFile::Look::kQuick);
    });
    if (config_.diagnose) {
      diagnosis_->diagnose(record, done.micro_batches, /*is_new=*/skips_in_a_row_ == 1);
    }
    check_not_stuck(record, done.micro_batches);
    return stop;
  }

  /// Whether the next step may be queued before it is known what came of the one at hand: not where
  /// an evaluation or a checkpoint follows, or steps are looked into.
  bool may_run_ahead() const {
    const auto comes_due = [&](int64_t every) { return every > 0 && queued_->record.step % every == 0; };
    return !setup_.device.is_cpu() && !config_.diagnose && !config_.dry_run && skips_in_a_row_ == 0 &&
           queued_->record.step < last_step() && !save_is_asked_ && !comes_due(plan_.eval_every) &&
           !comes_due(plan_.save_every);
  }

  /// Loss and tokens of this rank become those of all, and whether it is time for a checkpoint is as the main rank has
  /// it. Returns whether any was asked to stop.
  bool add_up(StepRecord& record) {
    const bool save_is_due = config_.save_minutes > 0 && seconds_since(saved_) >= 60 * config_.save_minutes;
    auto totals = at::empty({4}, at::kDouble);
    auto total = totals.accessor<double, 1>();
    total[0] = record.loss;
    total[1] = static_cast<double>(record.tokens);
    total[2] = stop_requested_() || keeper_.has_failed() ? 1 : 0;
    total[3] = ranks_.is_main() && save_is_due ? 1 : 0;
    ranks_.sum(totals);
    save_is_asked_ = total[3] != 0;
    record.loss = total[0];
    record.tokens = static_cast<int64_t>(total[1]);
    return total[2] != 0;
  }

  /// Steps, clipped. Returns the norm of the true gradients, and 1 where the step was
  /// skipped, both on the device.
  std::pair<at::Tensor, at::Tensor> update_weights() {
    diagnosis_->look_at_gradients(loss_scale_, is_last_chance());
    if (scaler_.is_enabled()) {
      scaler_.step(model_->optimizer());
      scaler_.update();
    } else {
      model_->optimizer().step(nullptr);
    }
    model_->update_average();
    model_->zero_grad();
    return {model_->grad_norm(), model_->found_inf()};
  }

  void count_step(StepRecord& record, double seconds) {
    record.seconds = seconds;
    if (setup_.device.is_cpu()) {
      record.parts = clock_.take();
    }
    counters_.step += 1;
    counters_.steps_taken += record.skipped ? 0 : 1;
    counters_.samples += record.samples;
    counters_.tokens += record.tokens;
    counters_.step_seconds += seconds;
    skips_in_a_row_ = record.skipped ? skips_in_a_row_ + 1 : 0;
  }

  void check_not_stuck(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
    if (skips_in_a_row_ < kMaxSkipsInARow) {
      return;
    }
    const std::string cause = diagnosis_->find_cause(record, micro_batches).text;
    TORCH_CHECK(false, "training: the last ", skips_in_a_row_, " steps, up to step ", record.step,
                ", were skipped because gradients were inf or NaN (loss ", fixed(record.loss, 4), ", loss scale ",
                record.loss_scale, "); ", cause, "; ", diagnosis_->overflow() ? diagnosis_->overflow()->summary() : "",
                config_.diagnose ? "" : "; --diagnose shows where it begins");
  }

  bool eval_is_due() const {
    if (setup_.dev.ids.empty() || counters_.step == 0 || counters_.last_eval_step == counters_.step) {
      return false;
    }
    return counters_.step == last_step() || is_last_step() || is_due(plan_.eval_every);
  }

  /// Whether `patience` evaluations have passed since the best model.
  bool is_out_of_patience() const {
    const int64_t best_step = counters_.best ? counters_.best->step : 0;
    return config_.patience > 0 && counters_.last_eval_step == counters_.step &&
           (counters_.step - best_step) / plan_.eval_every >= config_.patience;
  }

  /// Returns false when it was stopped, or could not be written down.
  bool evaluate_dev() {
    model_->swap_average();
    const bool goes_on = evaluate_weights_to_keep();
    model_->swap_average();
    return goes_on;
  }

  bool evaluate_weights_to_keep() {
    const auto evaluation = evaluate({.step = counters_.step, .split = "dev"}, setup_.dev);
    if (!evaluation) {
      return false;
    }
    auto best = counters_.best;
    const ModelScore score{evaluation->metrics.front(), evaluation->loss};
    const bool is_better =
        setup_.task->is_better(score, best ? std::optional(ModelScore{best->value, best->loss}) : std::nullopt);
    if (is_better) {
      best = BestModel{counters_.step, setup_.task->metrics().front().name, score.value, score.loss, save_model()};
    }
    if (ranks_.any(keeper_.has_failed())) {
      return false;  // before anything counts: the resumed run evaluates here again
    }
    if (is_better && model_->is_adapter()) {
      model_->keep_adapter();
    }
    counters_.last_eval_step = counters_.step;
    has_unsaved_evaluation_ = true;
    counters_.best = best;
    if (metric_scheduler_ && (is_last_step() || is_due(plan_.eval_every))) {  // not where the run only pauses
      metric_scheduler_->step(evaluation->loss);
    }
    if (keeper_.output() != nullptr && best) {
      keeper_.output()->best(*best);
    }
    return true;
  }

  /// @param record  step and split, and whether it is the final one. Returns
  ///   nullopt when it was stopped.
  std::optional<Evaluation> evaluate(EvalRecord record, const TokenizedTexts& texts) {
    const auto begin = Clock::now();
    const auto outputs = outputs_of(texts);
    if (!outputs.defined()) {
      return std::nullopt;
    }
    auto evaluation = setup_.task->evaluate(outputs, texts.targets);
    record.loss = evaluation.loss;
    for (size_t i = 0; i < evaluation.metrics.size(); ++i) {
      record.metrics.emplace_back(setup_.task->metrics()[i].name, evaluation.metrics[i]);
    }
    if (record.is_final && std::isfinite(evaluation.loss)) {
      evaluation.mistakes = setup_.task->mistakes(outputs, texts.targets);
    }
    record.seconds = seconds_since(begin);
    keeper_.put_out([&](RunOutput& output) { output.eval(record); });
    return evaluation;
  }

  /// Of all ranks, on each; undefined when it was stopped.
  at::Tensor outputs_of(const TokenizedTexts& texts) {
    auto outputs = predict_outputs(*setup_.model, texts, setup_.precision, [&](int64_t) { return !stop_requested_(); },
                                   {.rank = ranks_.rank(), .of = ranks_.size()});
    if (ranks_.any(!outputs.defined())) {
      return {};
    }
    ranks_.sum(outputs);
    return outputs;
  }

  /// Fits to the model that is kept what the task leaves to be fitted, on dev. Returns false when it was stopped.
  bool tune_task() {
    if (setup_.dev.ids.empty() || !setup_.task->is_tunable()) {
      return true;
    }
    const auto outputs = outputs_of(setup_.dev);
    if (!outputs.defined()) {
      return false;
    }
    setup_.task = setup_.task->tuned(outputs, setup_.dev.targets);
    keeper_.put_out([&](RunOutput& output) {
      output.note(setup_.task->tuning());
      const auto file = config_.output / "config.json";
      const auto config = ModelConfig::from_file(file);
      setup_.task->describe(*config);
      config->save(file);
    });
    return true;
  }

  TrainResult finish() {
    const double train_seconds = total_seconds();
    keeper_.end_if_failed();
    end_training();
    const bool has_test = !setup_.test.ids.empty();
    std::optional<Evaluation> evaluation;
    if (has_test || !setup_.dev.ids.empty()) {
      const int64_t step = counters_.best ? counters_.best->step : counters_.step;
      if (tune_task()) {
        evaluation = evaluate({.step = step, .split = has_test ? "test" : "dev", .is_final = true},
                              has_test ? setup_.test : setup_.dev);
      }
      if (!evaluation) {
        keeper_.end_if_failed();
        keeper_.save_where_missing(counters_.step);  // one that a longer run goes on from is of before the evaluation
        return stopped();
      }
    }
    TrainResult result{.finished = true,
                       .saves_failed = ranks_.any(!keeper_.failed_saves().empty()),
                       .steps = counters_.step,
                       .evaluation = std::move(evaluation)};
    if (model_->is_adapter()) {
      keeper_.put_out([&](RunOutput&) {
        save_adapter(*setup_.model, model_->kept_adapter(), {.rank = config_.lora, .alpha = config_.lora_alpha},
                     config_.model, config_.output / kAdapterFolder);
      });
    }
    keeper_.put_out([&](RunOutput& output) {
      output.end({.steps = counters_.step,
                  .minutes = train_seconds / 60,
                  .samples_per_second = static_cast<double>(counters_.samples) / counters_.step_seconds,
                  .tokens_per_second = static_cast<double>(counters_.tokens) / counters_.step_seconds,
                  .peak_memory_bytes = peak_memory_bytes(),
                  .best_step = counters_.best ? std::optional(counters_.best->step) : std::nullopt},
                 result.evaluation, has_test ? "test" : "dev");
      if (const auto& failed = keeper_.failed_saves(); !failed.empty()) {
        const auto count = static_cast<int64_t>(failed.size());
        output.warn(fmt::format("trained to the end, but {} could not be saved; the last: {}",
                                counted(count, "checkpoint"), failed.back()));
      }
    });
    keeper_.end_if_failed();
    return result;
  }

  /// Leaves the best weights in the model, for the report.
  void end_training() {
    if (!setup_.dev.ids.empty() && !counters_.best) {
      keeper_.save();
      TORCH_CHECK(false,
                  "training: no evaluation on dev gave finite numbers, so there is no model to keep; the weights "
                  "after the last step, ",
                  counters_.step,
                  ", are in checkpoints/; lower --learning-rate, clip with "
                  "--max-grad-norm 1, or use another --precision");
    }
    keeper_.put_out([&](RunOutput& output) {
      if (counters_.step < plan_.total_steps) {
        output.note(fmt::format("step {}: {} without a better model; training ends here (--patience {})",
                                counters_.step, counted(config_.patience, "evaluation"), config_.patience));
      }
      output.training_done();
      if (auto communication = model_->communication()) {
        communication->step = counters_.step;
        output.communication(*communication);
      }
      if (const auto gradients = diagnosis_->take_gradients(counters_.step, loss_scale_)) {
        output.diagnose(*gradients);
      }
    });
    if (!counters_.best || counters_.best->step == counters_.step) {  // the weights to keep are those of now
      model_->swap_average();
      if (!counters_.best || ranks_.any(keeper_.output() != nullptr && keeper_.best_model_is_wrong())) {
        save_model();
      }
      if (model_->is_adapter()) {
        model_->keep_adapter();
      }
      keeper_.end_if_failed();
      return;
    }
    if (auto weights = model_->weights(); ranks_.is_main()) {
      last_weights_ = clone(weights);
    }
    keeper_.put_out([&](RunOutput&) {
      keeper_.mend_best_model(counters_.best, BestModelFile::Look::kThorough);
      if (!model_->is_adapter()) {
        load_pretrained(*setup_.model, config_.output, config_.seed);
      }
    });
    keeper_.end_if_failed();
    if (model_->is_adapter()) {
      model_->restore_kept_adapter();
    } else {
      ranks_.broadcast(setup_.model->parameters());
    }
  }

  TrainResult stopped() {
    if (keeper_.output() != nullptr) {
      keeper_.output()->stopped(counters_.step);
    }
    return {.finished = false, .steps = counters_.step, .evaluation = std::nullopt};
  }

  /// Returns the hash of the file; of none, on the other ranks.
  std::string save_model() { return keeper_.save_model(setup_.model->config(), model_->kept_weights()); }

  double total_seconds() const { return counters_.seconds + seconds_since(started_); }

  RunIdentity::Values environment() const {
    const auto pairs = environment_of(setup_);
    return {pairs.begin(), pairs.end()};
  }

  /// Collective; complete on the main rank.
  Checkpoint state() {
    Checkpoint checkpoint = counters_;
    checkpoint.seconds = total_seconds();
    checkpoint.identity = identity_;
    checkpoint.environment = environment();
    for (const auto& [key, value] : scaler_.state_dict()) {
      checkpoint.scaler[key] = value.toDouble();
    }
    checkpoint.schedule = metric_scheduler_ ? metric_scheduler_->state_dict() : std::map<std::string, double>();
    checkpoint.weights = model_->weights();
    if (!last_weights_.empty()) {
      checkpoint.weights = last_weights_;
    }
    for (const auto& entry : model_->optimizer_state()) {
      checkpoint.optimizer.push_back(entry);
    }
    return checkpoint;
  }

  void restore(const Checkpoint& checkpoint) {
    TORCH_CHECK_VALUE(checkpoint.step <= plan_.total_steps, "the checkpoint to resume from is of step ",
                      checkpoint.step, ", the run has ", plan_.total_steps, "; go on from another");
    if (scaler_.is_enabled()) {
      scaler_.load_state_dict(scaler_state(checkpoint));
      loss_scale_ = scaler_.get_scale();
    }
    if (metric_scheduler_) {
      metric_scheduler_->load_state_dict(checkpoint.schedule);
    }
    counters_ = checkpoint;
    counters_.identity = {};
    counters_.weights.clear();
    counters_.optimizer.clear();
  }

  const CpuHalfCompute fast_half_compute_;
  const std::function<bool()>& stop_requested_;
  const Ranks ranks_;
  RunKeeper keeper_;
  RunSetup setup_;
  std::optional<Checkpoint> resumed_;  // until its tensors are taken over
  const TrainConfig config_;           // with a number for a batch size, and of shares
  const RunPlan plan_;
  const RunIdentity identity_;
  std::optional<TrainingModel> model_;
  std::optional<GradientAccumulation> accumulation_;
  StepClock clock_;
  std::optional<StepDiagnosis> diagnosis_;
  std::optional<RecordedSteps> recorded_;
  std::unique_ptr<ReduceLROnPlateau> metric_scheduler_;  // learning rates of the schedules that follow the loss on dev
  GradScaler scaler_;
  double loss_scale_ = scaler_.get_scale();
  Checkpoint counters_;                                           // its tensors stay empty
  std::vector<std::pair<std::string, at::Tensor>> last_weights_;  // of the main rank, once the model has the best ones
  int64_t skips_in_a_row_ = 0;
  at::Tensor lr_;  // of the step to queue: 0-dim, float64, on the model's device
  std::optional<QueuedStep> queued_;
  Clock::time_point step_begin_;
  Clock::time_point started_;
  Clock::time_point saved_ = Clock::now();  // the last checkpoint, or the start
  bool save_is_asked_ = false;              // by the clock of the main rank
  bool has_unsaved_evaluation_ = false;     // no checkpoint so far knows of the last one
};

}  // namespace

TrainResult train(const TrainConfig& given,
                  const std::function<bool()>& stop_requested,
                  distributed::ProcessGroup* group) {
  given.validate();
  const Ranks ranks(group);
  TrainConfig config = restarted(given, ranks);
  set_threads(config.threads);
  if (const auto steps = steps_of_finished_run(config, ranks)) {
    if (ranks.is_main() && !config.quiet) {
      const auto present = read_present_run(config.output);
      const bool ended_early = present && present->total_steps > *steps;
      std::fputs(fmt::format("already finished after {}: model and report.html are in {}\n",
                             ended_early ? fmt::format("{} of {} steps", *steps, present->total_steps)
                                         : counted(*steps, "step"),
                             config.output.string())
                     .c_str(),
                 stderr);
    }
    return {.finished = true, .steps = *steps, .evaluation = std::nullopt};
  }
  const DeterministicGuard deterministic(parse_device(config.device));
  return Trainer(config, stop_requested, group).run();
}

}  // namespace mezzo::text
