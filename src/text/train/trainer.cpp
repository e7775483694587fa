#include "mezzo/text/train/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <memory>
#include <utility>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/overflow_report.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/metric_schedule.h"
#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/inference/inference.h"
#include "mezzo/text/models/pretrained.h"
#include "text/checkpoint/best_model_file.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/checkpoint/checkpoint_store.h"
#include "text/io/content_hash.h"
#include "text/train/batch_size.h"
#include "text/train/diagnosis.h"
#include "text/train/dry_run.h"
#include "text/train/machine_memory.h"
#include "text/train/ranks.h"
#include "text/train/run_folder.h"
#include "text/train/run_identity.h"
#include "text/train/run_output.h"
#include "text/train/run_setup.h"
#include "text/train/training_model.h"
#include "text/train/training_parts.h"
#include "text/words/printable.h"
#include "text/words/words.h"

namespace mezzo::text {
namespace {

using Clock = std::chrono::steady_clock;

/// Gradients that stay inf or NaN however far the scale falls will not come back. Counted here and not by the scaler:
/// without one, in fp32 and bf16, steps are skipped too.
constexpr int64_t kMaxSkipsInARow = 50;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// What `make` returns, on every rank or on none.
template <class Make>
auto together(const Ranks& ranks, const Make& make) {
  std::optional<decltype(make())> made;
  ranks.all_or_none([&] { made.emplace(make()); });
  return *std::move(made);
}

/// Two hosts may each see another run's checkpoint, of the same step.
std::string name_of(const std::optional<Checkpoint>& checkpoint) {
  if (!checkpoint) {
    return "none";
  }
  ContentHash state;
  const std::string text = checkpoint_format::state_text(*checkpoint);
  state.update(text.data(), text.size());
  return fmt::format("step {} of run {} (state {:.8})", checkpoint->step, checkpoint->run, state.hex());
}

std::vector<std::pair<std::string, at::Tensor>> clone(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<std::pair<std::string, at::Tensor>> copies;
  for (const auto& [name, tensor] : tensors) {
    copies.emplace_back(name, tensor.clone());
  }
  return copies;
}

/// The checkpoint to go on from. Ranks agree on it, and on what else decides which collectives they call, before any of
/// them acts on it.
std::optional<Checkpoint> agree_on_start(const TrainConfig& config, const Ranks& ranks) {
  auto checkpoint = together(ranks, [&] { return find_checkpoint(config, ranks.is_main()); });
  std::map<std::string, std::string> start = {
      {"the checkpoint to resume from, which all hosts must see,", name_of(checkpoint)},
      {"dry-run", config.dry_run ? "true" : "false"}};
  for (const auto& [name, value] : config.settings()) {
    if (name == "batch-size" || name == "diagnose" || name == "eval-every" || name == "save-every") {
      start.emplace(name, value);
    }
  }
  ranks.check_same(start);
  return checkpoint;
}

class Trainer {
 public:
  Trainer(const TrainConfig& config, const std::function<bool()>& stop_requested, distributed::ProcessGroup* group)
      : stop_requested_(stop_requested),
        ranks_(group),
        folder_(together(ranks_,
                         [&] {
                           const bool writes = ranks_.is_main() && !config.dry_run;
                           return writes ? std::make_unique<RunFolder>(config) : nullptr;
                         })),
        setup_(together(ranks_, [&] { return set_up_run(config); })),
        resumed_(agree_on_start(config, ranks_)),
        config_(with_batch_size(config, setup_, ranks_, resumed_ ? resumed_->identity.flags["batch-size"] : "")),
        plan_(plan_run(config_, static_cast<int64_t>(setup_.train.ids.size()), ranks_)),
        identity_(identity_of(config_, setup_, ranks_)),
        metric_schedule_(make_metric_schedule(config_)),
        scaler_(scaler_options(config_, setup_.precision)) {
    check_same_on_all(identity_, setup_, ranks_);
    ranks_.all_or_none([&] {
      const std::string difference = resumed_ ? describe_difference(resumed_->identity, identity_) : "";
      TORCH_CHECK_VALUE(difference.empty(), "--resume: the checkpoint is of another run: ", difference,
                        "; resume with the same settings, or start afresh in another --output");
      if (folder_) {
        folder_->check(resumed_, identity_);
      }
    });
    if (config_.dry_run) {
      return;  // steps are tried when it is known that they may fit
    }
    prepare_model();
    stop_requested_();        // from here on it is heeded, before the first step
    ranks_.all_or_none([&] {  // all else is in order: now the folder is touched
      if (folder_) {
        open_output();
      }
    });
    resumed_.reset();
  }

  TrainResult run() {
    TrainResult result;
    try {
      ranks_.guard([&] { result = config_.dry_run ? dry_run() : run_steps(); });
    } catch (const c10::Error& error) {
      failed(error.what_without_backtrace());
      throw;
    } catch (const std::exception& error) {
      failed(error.what());
      throw;
    }
    if (output_ && result.finished) {
      output_->print_summary();  // a stdout that cannot be written fails the program, not the run
    }
    return result;
  }

 private:
  void prepare_model() {
    setup_.model->set_gradient_checkpointing(config_.gradient_checkpointing);
    model_.emplace(config_, setup_, ranks_, resumed_ ? &*resumed_ : nullptr);
    if (resumed_) {
      restore(*resumed_);
    }
  }

  TrainResult dry_run() {
    const PlannedWork work = look_ahead(config_, setup_.train, plan_);
    const auto estimate = estimate_memory(*setup_.model, setup_.precision, config_, plan_.ranks, work.largest);
    MachineMemory memory = machine_memory(setup_.device);
    // Where it may be too much, trying would be worse than not knowing. The weights are there already.
    const bool may_fit = estimate.total - estimate.weights < memory.available;
    if (setup_.device.is_cpu()) {
      memory.available += resident_memory_bytes();  // as a run has from its start
    }
    std::optional<MeasuredSteps> measured;
    if (!ranks_.any(!may_fit)) {
      prepare_model();
      resumed_.reset();
      measured = try_steps(work);
    }
    const bool stopped = ranks_.any(stop_requested_());
    if (ranks_.is_main() && !stopped) {
      print_dry_run(config_, setup_, plan_, work, memory, measured);
    }
    return {.finished = !stopped, .steps = 0, .evaluation = std::nullopt};
  }

  /// Takes steps of the run, at first the one that needs the most memory, which also pays for what first steps set up.
  MeasuredSteps try_steps(const PlannedWork& work) {
    constexpr int64_t kMostSteps = 15, kMostTexts = 256;
    constexpr double kMostSeconds = 10;
    const auto try_step = [&](int64_t step) {
      counters_.step = step;
      return train_step();
    };
    MeasuredSteps measured;
    setup_.model->train();
    bool stop = try_step(work.largest_step);
    const auto begin = Clock::now();
    while (!stop && measured.steps < kMostSteps) {
      const int64_t sample = nth_sample(++measured.steps, static_cast<int64_t>(work.by_tokens.size()));
      stop = try_step(work.by_tokens[sample]) || ranks_.any(seconds_since(begin) > kMostSeconds);
    }
    measured.seconds_per_step = seconds_since(begin) / static_cast<double>(std::max<int64_t>(measured.steps, 1));
    if (const auto texts = sample_texts(setup_.dev.ids.empty() ? setup_.test : setup_.dev, kMostTexts);
        !texts.ids.empty()) {
      const auto evaluation_begin = Clock::now();
      predict_outputs(*setup_.model, texts, setup_.precision, {}, {.rank = ranks_.rank(), .of = ranks_.size()});
      measured.seconds_per_text = seconds_since(evaluation_begin) / static_cast<double>(texts.ids.size());
    }
    for (const std::string& peak : ranks_.all_gather(std::to_string(peak_memory_bytes()))) {
      measured.peak_memory_bytes = std::max<int64_t>(measured.peak_memory_bytes, std::stoll(peak));
    }
    if (!setup_.dev.ids.empty()) {  // in the end the best weights are read again, a tensor at a time
      measured.peak_memory_bytes += largest_parameter_bytes(*setup_.model);
    }
    return measured;
  }

  void failed(const std::string& error) noexcept {
    try {
      if (output_ && folder_->is_there()) {
        output_->failed(counters_.step, error);
      } else if (output_) {
        output_->training_done();
      }
    } catch (const std::exception&) {  // such as a closed stderr: `error` is the one to report
    }
  }

  TrainResult run_steps() {
    started_ = Clock::now();
    if (ranks_.any(stop_requested_())) {
      save_where_missing();
      return stopped();
    }
    setup_.model->train();
    bool stop = eval_is_due() && !evaluate_dev();  // when stopped between a step and its evaluation
    if (stop) {
      end_if_output_failed();
      save_where_missing();
    }
    while (!stop && counters_.step < plan_.total_steps) {
      stop = train_step();
      if (!stop && eval_is_due()) {
        stop = !evaluate_dev();
      }
      const bool save_is_due = config_.save_every > 0 && counters_.step % config_.save_every == 0;
      if (stop) {
        end_if_output_failed();
        save();
      } else if (save_is_due) {
        put_out([&] { output_->flush(); });
        if (const Checkpoint checkpoint = state(); ranks_.is_main() && !output_error_) {  // else the run ends next
          save_if_possible(checkpoint);
        }
      }
    }
    return stop ? stopped() : finish();
  }

  /// One optimizer step over `grad_accumulation` micro-batches. Returns whether to stop, which any rank may ask for.
  bool train_step() {
    const auto begin = Clock::now();
    StepRecord record{.step = counters_.step + 1};
    record.lr = metric_schedule_ ? metric_schedule_->lr()
                                 : config_.learning_rate * plan_.schedule.factor(counters_.steps_taken);
    model_->set_lr(record.lr);

    record.samples = plan_.samples(setup_.train, counters_.step);
    const auto micro_batches = plan_.micro_batches(setup_.train, counters_.step);
    const auto loss =
        accumulate_gradients(micro_batches, record, [&](const at::Tensor& share) { return scaler_.scale(share); });
    const auto [grad_norm, found_inf] = update_weights();

    // The one time a step waits for the device: whether it was skipped decides the next learning rate.
    const auto values = at::stack({loss, grad_norm.to(at::kFloat), found_inf.to(at::kFloat)}).cpu();
    const auto value = values.accessor<float, 1>();
    record.loss = value[0];
    record.grad_norm = value[1];
    record.skipped = value[2] != 0;
    record.loss_scale = loss_scale_;
    const bool stop = add_up(record);
    count_step(record, seconds_since(begin));
    record.epoch = plan_.epochs_after(counters_.step);
    put_out([&] {
      output_->step(record);
      mend_best_model(BestModelFile::Look::kQuick);
    });
    if (config_.diagnose) {
      diagnose(record, micro_batches);
    }
    check_not_stuck(record, micro_batches);
    loss_scale_ = scaler_.get_scale();
    return stop;
  }

  /// Loss and tokens of this rank become those of all. Returns whether any was asked to stop.
  bool add_up(StepRecord& record) const {
    auto totals = at::empty({3}, at::kDouble);
    auto total = totals.accessor<double, 1>();
    total[0] = record.loss;
    total[1] = static_cast<double>(record.tokens);
    total[2] = stop_requested_() || output_error_ ? 1 : 0;
    ranks_.sum(totals);
    record.loss = total[0];
    record.tokens = static_cast<int64_t>(total[1]);
    return total[2] != 0;
  }

  /// Forward and backward of each micro-batch, from its share of the loss as `scale` returns it. Returns the sum of
  /// this rank's shares; over all ranks, that is the mean loss.
  at::Tensor accumulate_gradients(const std::vector<MicroBatch>& micro_batches,
                                  StepRecord& record,
                                  const std::function<at::Tensor(const at::Tensor&)>& scale) {
    auto loss = at::zeros({}, at::TensorOptions(at::kFloat).device(setup_.device));
    for (const auto& micro : micro_batches) {
      const auto batch =
          collate(setup_.train, micro.indices, plan_.batching, config_.max_length, setup_.model->config().pad_token_id);
      const bool is_last = &micro == &micro_batches.back();
      // Gradients that are summed in float32, outside the model, have to be exchanged before.
      const auto no_sync = !is_last && !model_->has_masters() ? model_->no_sync() : nullptr;
      // Each text weighs the same, however texts fall into micro-batches and to ranks.
      auto share = summed_loss(batch.to(setup_.device), micro.number) / record.samples;
      if (micro.is_stand_in) {
        share = share * 0;
      }
      scale(share).backward();
      if (model_->has_masters() && micro_batches.size() > 1) {
        model_->accumulate_in_masters();
      }
      loss += share.detach();
      record.tokens += micro.is_stand_in ? 0 : batch.num_tokens;
    }
    return loss;
  }

  /// Repeats a skipped step under the tracer: same weights, texts, dropout and scale, so the same overflow; but op by
  /// op in place of fused blocks, which rounds otherwise. Each rank by itself.
  std::optional<NonFiniteOp> retrace(const std::vector<MicroBatch>& micro_batches, StepRecord record) {
    const auto no_sync = model_->no_sync();
    const FiniteTracer tracer;
    accumulate_gradients(micro_batches, record, [&](const at::Tensor& share) { return share * record.loss_scale; });
    model_->zero_grad();
    return tracer.first();
  }

  /// This rank's gradients of a step at a scale of one's own, by exponent. Leaves none behind.
  std::vector<GradientExponents> gradients_at(double scale,
                                              const std::vector<MicroBatch>& micro_batches,
                                              StepRecord record) {
    const auto no_sync = model_->no_sync();
    accumulate_gradients(micro_batches, record, [&](const at::Tensor& share) { return share * scale; });
    auto counted = diagnosis_.count(model_->optimizer(), scale);
    model_->zero_grad();
    return counted;
  }

  /// Counts gradients that may have become 0 again, with the scale they had and with one that suits them. By now the
  /// weights have moved by a step, for both. Collective: what the main rank suspects, all look for.
  void look_for_underflow(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
    if (!scaler_.is_enabled()) {
      return;
    }
    const double suspected = diagnosis_.better_scale(record.loss_scale).value_or(0);
    constexpr double kLess = 16;  // where gradients of activations overflow, that those of weights do not tell of
    for (double scale = std::stod(ranks_.all_gather(fmt::format("{}", suspected)).front());
         scale > 2 * record.loss_scale; scale /= kLess) {
      auto true_ones = gradients_at(scale, micro_batches, record);
      if (!ranks_.any(!are_finite(true_ones))) {
        diagnosis_.found_underflow(gradients_at(record.loss_scale, micro_batches, record), std::move(true_ones));
        return;
      }
    }
  }

  /// Whether the loss, its scale or neither keeps the gradients of a skipped step from being finite. Collective.
  DiagnoseRecord find_cause(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
    std::vector<GradientExponents> unscaled;
    if (scaler_.is_enabled() && std::isfinite(record.loss)) {
      unscaled = gradients_at(1, micro_batches, record);
      if (ranks_.any(!are_finite(unscaled))) {
        unscaled.clear();
      }
    }
    return describe_cause(record, scaler_.is_enabled(), config_.loss_scale.has_value(), unscaled);
  }

  void diagnose(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
    if (record.skipped) {
      tell_of_skip(record, micro_batches);
    }
    look_for_underflow(record, micro_batches);
    diagnosis_.end_step();
    if (output_ && diagnosis_.gradients_are_due()) {
      if (const auto gradients = diagnosis_.take_gradients(record.step, record.loss_scale)) {
        put_out([&] { output_->diagnose(*gradients); });
      }
    }
  }

  void tell_of_skip(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
    const auto first_op = retrace(micro_batches, record);
    const auto first_ops = ranks_.all_gather(first_op ? first_op->to_string() : "");
    const bool is_new = skips_in_a_row_ == 1;
    const auto cause = is_new ? std::optional(find_cause(record, micro_batches)) : std::nullopt;
    if (!output_) {
      return;
    }
    if (overflow_ && !overflow_->empty()) {
      put_out([&] { output_->diagnose(describe(*overflow_, record.step, record.loss_scale)); });
    }
    for (size_t rank = 0; rank < first_ops.size(); ++rank) {
      if (!first_ops[rank].empty()) {
        DiagnoseRecord found;
        found.step = record.step;
        found.kind = "first_op";
        found.loss_scale = record.loss_scale;
        found.text = (first_ops.size() > 1 ? fmt::format("on rank {}: ", rank) : "") + first_ops[rank];
        put_out([&] { output_->diagnose(found); });
        break;
      }
    }
    if (cause) {
      put_out([&] { output_->diagnose(*cause); });
    }
  }

  at::Tensor summed_loss(const PackedBatch& batch, uint32_t micro_batch) {
    const auto dtype = autocast_dtype(setup_.precision);
    const AutocastGuard autocast(setup_.device.type(), dtype.value_or(at::kBFloat16), dtype.has_value());
    const DropoutSeed random{config_.seed, micro_batch};
    return setup_.task->loss(model_->forward(batch, random), batch);
  }

  /// Steps, clipped. Returns the norm of the true gradients, and 1 where the step was skipped, both on the device.
  std::pair<at::Tensor, at::Tensor> update_weights() {
    look_at_gradients();
    if (scaler_.is_enabled()) {
      scaler_.step(model_->optimizer());
      scaler_.update();
    } else {
      model_->optimizer().step(nullptr);
    }
    model_->zero_grad();
    return {model_->grad_norm(), model_->optimizer().found_inf()};
  }

  /// Waits for the device, so only where asked to, and in the step that may turn out to be one skip too many.
  void look_at_gradients() {
    overflow_.reset();
    if (config_.diagnose || skips_in_a_row_ + 1 >= kMaxSkipsInARow) {
      overflow_ = overflow_report(model_->optimizer());
    }
    if (config_.diagnose) {
      diagnosis_.look_at(model_->optimizer(), loss_scale_, *overflow_);
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

  void check_not_stuck(const StepRecord& record, const std::vector<MicroBatch>& micro_batches) {
    if (skips_in_a_row_ < kMaxSkipsInARow) {
      return;
    }
    const std::string cause = find_cause(record, micro_batches).text;
    TORCH_CHECK(false, "training: the last ", skips_in_a_row_, " steps, up to step ", record.step,
                ", were skipped because gradients were inf or NaN (loss ", fixed(record.loss, 4), ", loss scale ",
                record.loss_scale, "); ", cause, "; ", overflow_ ? overflow_->summary() : "",
                config_.diagnose ? "" : "; --diagnose shows where it begins");
  }

  bool eval_is_due() const {
    if (setup_.dev.ids.empty() || counters_.step == 0 || counters_.last_eval_step == counters_.step) {
      return false;
    }
    const bool is_last = counters_.step >= plan_.total_steps;
    return is_last || (config_.eval_every > 0 && counters_.step % config_.eval_every == 0);
  }

  /// Returns false when it was stopped, or could not be written down.
  bool evaluate_dev() {
    const auto evaluation = evaluate({.step = counters_.step, .split = "dev"}, setup_.dev);
    if (!evaluation) {
      return false;
    }
    auto best = counters_.best;
    const double value = evaluation->metrics.front();
    if (setup_.task->is_better(value, best ? std::optional(best->value) : std::nullopt)) {
      best = BestModel{counters_.step, setup_.task->metrics().front().name, value, save_model()};
    }
    if (ranks_.any(output_error_ != nullptr)) {
      return false;  // before anything counts: the resumed run evaluates here again
    }
    counters_.last_eval_step = counters_.step;
    counters_.best = best;
    if (metric_schedule_) {
      metric_schedule_->observe(evaluation->loss);
    }
    if (output_ && best) {
      output_->best(*best);
    }
    return true;
  }

  /// @param record  step and split, and whether it is the final one. Returns nullopt when it was stopped.
  std::optional<Evaluation> evaluate(EvalRecord record, const TokenizedTexts& texts) {
    const auto begin = Clock::now();
    auto outputs = predict_outputs(*setup_.model, texts, setup_.precision, [&](int64_t) { return !stop_requested_(); },
                                   {.rank = ranks_.rank(), .of = ranks_.size()});
    if (ranks_.any(!outputs.defined())) {
      return std::nullopt;
    }
    ranks_.sum(outputs);
    auto evaluation = setup_.task->evaluate(outputs, texts.targets);
    record.loss = evaluation.loss;
    for (size_t i = 0; i < evaluation.metrics.size(); ++i) {
      record.metrics.emplace_back(setup_.task->metrics()[i].name, evaluation.metrics[i]);
    }
    record.seconds = seconds_since(begin);
    put_out([&] { output_->eval(record); });
    return evaluation;
  }

  TrainResult finish() {
    const double train_seconds = total_seconds();
    end_if_output_failed();
    end_training();
    const bool has_test = !setup_.test.ids.empty();
    std::optional<Evaluation> evaluation;
    if (has_test || !setup_.dev.ids.empty()) {
      const int64_t step = counters_.best ? counters_.best->step : counters_.step;
      evaluation = evaluate({.step = step, .split = has_test ? "test" : "dev", .is_final = true},
                            has_test ? setup_.test : setup_.dev);
      if (!evaluation) {
        end_if_output_failed();
        save();
        return stopped();
      }
    }
    TrainResult result{.finished = true,
                       .saves_failed = ranks_.any(!failed_saves_.empty()),
                       .steps = counters_.step,
                       .evaluation = std::move(evaluation)};
    put_out([&] {
      output_->end({.steps = counters_.step,
                    .minutes = train_seconds / 60,
                    .samples_per_second = static_cast<double>(counters_.samples) / counters_.step_seconds,
                    .tokens_per_second = static_cast<double>(counters_.tokens) / counters_.step_seconds,
                    .peak_memory_bytes = peak_memory_bytes(),
                    .best_step = counters_.best ? std::optional(counters_.best->step) : std::nullopt},
                   result.evaluation, has_test ? "test" : "dev");
      if (!failed_saves_.empty()) {
        const auto count = static_cast<int64_t>(failed_saves_.size());
        output_->warn(fmt::format("trained to the end, but {} could not be saved; the last: {}",
                                  counted(count, "checkpoint"), failed_saves_.back()));
      }
    });
    end_if_output_failed();
    return result;
  }

  /// Leaves the best weights in the model, for the report.
  void end_training() {
    if (!setup_.dev.ids.empty() && !counters_.best) {
      save();
      TORCH_CHECK(false,
                  "training: no evaluation on dev gave finite numbers, so there is no model to keep; the weights "
                  "after the last step, ",
                  counters_.step,
                  ", are in checkpoints/; lower --learning-rate, clip with "
                  "--max-grad-norm 1, or use another --precision");
    }
    put_out([&] {
      output_->training_done();
      if (auto communication = model_->communication()) {
        communication->step = counters_.step;
        output_->communication(*communication);
      }
      if (const auto gradients = diagnosis_.take_gradients(counters_.step, loss_scale_)) {
        output_->diagnose(*gradients);
      }
    });
    if (!counters_.best || counters_.best->step == counters_.step) {  // the model has the weights to keep
      const auto is_wrong = [&] { return !best_model_->problem(BestModelFile::Look::kThorough).empty(); };
      if (!counters_.best || ranks_.any(output_ && is_wrong())) {
        save_model();
      }
      end_if_output_failed();
      return;
    }
    if (auto weights = model_->weights(); ranks_.is_main()) {
      last_weights_ = clone(weights);
      put_out([&] {
        mend_best_model(BestModelFile::Look::kThorough);
        load_pretrained(*setup_.model, config_.output, config_.seed);
      });
    }
    end_if_output_failed();
    ranks_.broadcast(setup_.model->parameters());
  }

  TrainResult stopped() {
    if (output_) {
      output_->stopped(counters_.step);
    }
    return {.finished = false, .steps = counters_.step, .evaluation = std::nullopt};
  }

  /// Returns the hash of the file; of none, on the other ranks.
  std::string save_model() {
    const auto tensors = model_->weights();
    std::string hash;
    put_out([&] {
      if (output_error_) {
        return;  // the checkpoint to come has the best model that is there
      }
      check_folder();
      hash = output_->save_model(setup_.model->config(), tensors);
      best_model_->written(hash);
    });
    return hash;
  }

  std::optional<std::filesystem::path> find_copy_of_best() const {
    return checkpoints_->find_weights(counters_.best->hash);
  }

  /// Of the main rank. While a run goes on, the best weights lie in a file alone.
  void mend_best_model(BestModelFile::Look look) {
    if (!counters_.best) {
      return;
    }
    if (const std::string problem = best_model_->mend(look, [&] { return find_copy_of_best(); }); !problem.empty()) {
      output_->warn(problem + "; put back from a checkpoint");
    }
  }

  double total_seconds() const { return counters_.seconds + seconds_since(started_); }

  /// What the main rank shows and writes down. Where that fails, the ranks go on together to where they stop, so that
  /// what is in memory can be saved.
  template <class Work>
  void put_out(const Work& work) {
    try {
      if (output_) {
        work();
      }
    } catch (const std::exception&) {
      output_error_ = output_error_ ? output_error_ : std::current_exception();
    }
  }

  /// With a checkpoint of what is in memory, unless the whole folder is gone. Records are on the disk before, where
  /// they can be: a power cut may leave it as the newest one. Where the best model is lost, an earlier checkpoint is
  /// worth more than one without it: what comes after it is found again.
  void end_if_output_failed() {
    put_out([&] { output_->flush(); });
    if (!ranks_.any(output_error_ != nullptr)) {
      return;
    }
    Checkpoint checkpoint = state();
    if (output_ && folder_->is_there()) {
      const bool has_best =
          !checkpoint.best || best_model_->problem(BestModelFile::Look::kThorough).empty() || find_copy_of_best();
      if (!has_best) {
        checkpoint.best.reset();
        checkpoint.last_eval_step =
            std::min(checkpoint.last_eval_step, checkpoint.step - 1);  // its model is the best of now
      }
      if (has_best || !checkpoints_->has_any()) {
        save_if_possible(checkpoint);
      }
    }
    ranks_.all_or_none([&] {
      if (output_error_) {
        std::rethrow_exception(output_error_);
      }
    });
  }

  void check_folder() const {
    TORCH_CHECK(folder_->is_there(), config_.output.string(),
                ": was removed, moved or replaced while the run was going");
  }

  void write(const Checkpoint& checkpoint) {
    check_folder();
    checkpoints_->save(checkpoint, best_model_->path());
  }

  /// Of the main rank. A run does not end because a checkpoint in between could not be written: the disk may have room
  /// again later.
  void save_if_possible(const Checkpoint& checkpoint) {
    try {
      write(checkpoint);
    } catch (const std::exception& error) {
      const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
      failed_saves_.emplace_back(torch_error != nullptr ? torch_error->what_without_backtrace() : error.what());
      output_->warn(fmt::format("the checkpoint of step {} could not be saved{}: {}", checkpoint.step,
                                output_error_ ? "" : ", training goes on", failed_saves_.back()));
    }
  }

  void save() {
    if (const Checkpoint checkpoint = state(); ranks_.is_main()) {
      write(checkpoint);
    }
  }

  /// Before the first step: what was resumed from may lie in another folder.
  void save_where_missing() {
    if (counters_.step > 0 && ranks_.any(ranks_.is_main() && !checkpoints_->has(counters_.step))) {
      save();
    }
  }

  /// Collective; complete on the main rank.
  Checkpoint state() {
    Checkpoint checkpoint = counters_;
    checkpoint.seconds = total_seconds();
    checkpoint.identity = identity_;
    for (const auto& [key, value] : scaler_.state_dict()) {
      checkpoint.scaler[key] = value.toDouble();
    }
    checkpoint.schedule = metric_schedule_ ? metric_schedule_->state_dict() : std::map<std::string, double>();
    checkpoint.weights = model_->weights();
    if (!last_weights_.empty()) {
      checkpoint.weights = last_weights_;
    }
    for (const auto& entry : model_->optimizer_state()) {
      checkpoint.optimizer.push_back(entry);
    }
    return checkpoint;
  }

  void open_output() {
    output_.emplace(config_, setup_, plan_, identity_, *folder_, resumed_);
    counters_.run = folder_->run();
    checkpoints_.emplace(config_.output / "checkpoints", config_.keep);
    best_model_.emplace(config_.output / "model.safetensors");
    if (!resumed_) {
      return;
    }
    checkpoints_->goes_on_from(*resumed_);
    if (resumed_->best) {
      output_->best(*resumed_->best);
      // Its file is not there in a new folder, and of a later step where the run had gone on after the checkpoint.
      best_model_->expect(resumed_->best->hash);
      best_model_->mend(BestModelFile::Look::kThorough, [&] { return std::optional(resumed_->best_weights); });
    }
  }

  void restore(const Checkpoint& checkpoint) {
    if (scaler_.is_enabled()) {
      scaler_.load_state_dict(scaler_state(checkpoint));
      loss_scale_ = scaler_.get_scale();
    }
    if (metric_schedule_) {
      metric_schedule_->load_state_dict(checkpoint.schedule);
    }
    counters_ = checkpoint;
    counters_.identity = {};
    counters_.weights.clear();
    counters_.optimizer.clear();
  }

  const CpuHalfCompute fast_half_compute_;
  const std::function<bool()>& stop_requested_;
  const Ranks ranks_;
  const std::unique_ptr<RunFolder> folder_;  // of the main rank
  RunSetup setup_;
  std::optional<Checkpoint> resumed_;  // until its tensors are taken over
  const TrainConfig config_;           // with a number for a batch size
  const RunPlan plan_;
  const RunIdentity identity_;
  std::optional<RunOutput> output_;  // of the main rank, as are the next three
  std::optional<CheckpointStore> checkpoints_;
  std::optional<BestModelFile> best_model_;
  std::vector<std::string> failed_saves_;
  std::exception_ptr output_error_;
  std::optional<TrainingModel> model_;
  std::optional<MetricSchedule> metric_schedule_;  // learning rates of the schedules that follow the loss on dev
  GradScaler scaler_;
  double loss_scale_ = scaler_.get_scale();
  Checkpoint counters_;                                           // its tensors stay empty
  std::vector<std::pair<std::string, at::Tensor>> last_weights_;  // of the main rank, once the model has the best ones
  int64_t skips_in_a_row_ = 0;
  Diagnosis diagnosis_{[model = setup_.model](const std::string& parameter) { return model->part_of(parameter); }};
  std::optional<OverflowReport> overflow_;  // of the last step's gradients, where they were looked at
  Clock::time_point started_;
};

}  // namespace

TrainResult train(const TrainConfig& config,
                  const std::function<bool()>& stop_requested,
                  distributed::ProcessGroup* group) {
  config.validate();
  if (config.threads > 0) {
    at::set_num_threads(static_cast<int>(config.threads));
  }
  return Trainer(config, stop_requested, group).run();
}

}  // namespace mezzo::text
