#include "text/train/evaluator.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "mezzo/text/inference/inference.h"
#include "mezzo/text/models/pretrained.h"
#include "text/train/step_clock.h"

namespace mezzo::text {

std::optional<double> Evaluator::evaluate_dev() {
  model_.swap_average();
  const auto loss = evaluate_kept_weights();
  model_.swap_average();
  return loss;
}

std::optional<double> Evaluator::evaluate_kept_weights() {
  TrainerState& state = run_.state;
  const Task& task = *run_.setup.task;
  const auto outputs = outputs_of(run_.setup.dev);
  if (!outputs.defined()) return std::nullopt;
  const Evaluation evaluation = evaluate({.step = state.step, .split = "dev"}, run_.setup.dev, outputs);
  auto best = state.best;
  const ModelScore score{evaluation.metrics.front(), evaluation.loss};
  const bool is_better =
      task.is_better(score, best ? std::optional(ModelScore{best->value, best->loss}) : std::nullopt);
  if (is_better) {
    best = BestModel{state.step, task.metrics().front().name, score.value, score.loss, save_model()};
  }
  if (run_.ranks.any(run_.keeper.has_failed())) return std::nullopt;
  if (is_better) {
    model_.keep_adapter();
  }
  state.last_eval_step = state.step;
  state.best = best;
  if (run_.keeper.output() != nullptr && best) {
    run_.keeper.output()->best(*best);
  }
  return evaluation.loss;
}

Evaluation Evaluator::evaluate(EvalRecord record, const TokenizedTexts& texts, const at::Tensor& outputs) {
  const Task& task = *run_.setup.task;
  auto evaluation = task.evaluate(outputs, texts.targets);
  record.loss = evaluation.loss;
  for (size_t i = 0; i < evaluation.metrics.size(); ++i) {
    record.metrics.emplace_back(task.metrics()[i].name, evaluation.metrics[i]);
  }
  record.never_predicted = evaluation.never_predicted;
  record.majority_baseline = evaluation.majority_baseline;
  if (record.is_final && std::isfinite(evaluation.loss)) {
    evaluation.mistakes = task.mistakes(outputs, texts.targets);
  }
  record.seconds = seconds_since(begin_);
  run_.keeper.put_out([&](RunOutput& output) { output.eval(record); });
  return evaluation;
}

/// Of all ranks, on each; undefined if it was stopped.
at::Tensor Evaluator::outputs_of(const TokenizedTexts& texts) {
  begin_ = Clock::now();
  model_.catch_up();
  auto outputs =
      predict_outputs(*run_.setup.model, texts, run_.setup.precision, [&](int64_t) { return !run_.stop_requested(); },
                      {.rank = run_.ranks.rank(), .of = run_.ranks.size()});
  if (run_.ranks.any(!outputs.defined())) return {};
  run_.ranks.sum(outputs);
  return outputs;
}

void Evaluator::put_back_best() {
  const auto& best = run_.state.best;
  RunKeeper& keeper = run_.keeper;
  if (!best && !run_.setup.dev.ids.empty()) {
    keeper.save();
    TORCH_CHECK(
        false,
        "training: no evaluation on dev gave finite numbers, so no model is kept. The weights after the last step, ",
        run_.state.step,
        ", are in checkpoints/. Lower --learning-rate, clip with --max-grad-norm 1, or use "
        "another --precision");
  }
  if (!best || best->step == run_.state.step) {  // the weights to keep are the current ones
    model_.swap_average();
    if (!best || run_.ranks.any(keeper.output() != nullptr && keeper.best_model_is_wrong())) {
      save_model();
    }
    model_.keep_adapter();
    keeper.end_if_failed();
    return;
  }
  model_.set_weights_aside();
  keeper.put_out([&](RunOutput&) {
    keeper.mend_best_model(best, BestModelFile::Look::kThorough);
    if (!model_.is_adapter()) {
      load_pretrained(*run_.setup.model, run_.config.output, run_.config.seed);
    }
  });
  keeper.end_if_failed();
  if (model_.is_adapter()) {
    model_.restore_best_adapter();
  } else {
    run_.ranks.broadcast(run_.setup.model->parameters());
  }
}

std::optional<Evaluation> Evaluator::evaluate_best() {
  const RunSetup& setup = run_.setup;
  const TrainerState& state = run_.state;
  const bool has_test = !setup.test.ids.empty();
  const TokenizedTexts& texts = has_test ? setup.test : setup.dev;
  at::Tensor outputs;
  if (!setup.dev.ids.empty() && setup.task->is_tunable()) {
    outputs = outputs_of(setup.dev);
    if (!outputs.defined()) return std::nullopt;
    tuning_ = setup.task->tune(outputs, setup.dev.targets);
    run_.keeper.put_out([&](RunOutput& output) { output.note(tuning_->note); });
  }
  if (has_test || !tuning_) outputs = outputs_of(texts);
  if (!outputs.defined()) return std::nullopt;
  if (tuning_) outputs = rescale_outputs(tuning_->scaling, outputs);
  auto evaluation = evaluate(
      {.step = state.best ? state.best->step : state.step, .split = has_test ? "test" : "dev", .is_final = true}, texts,
      outputs);
  if (tuning_) save_tuned();
  return evaluation;
}

void Evaluator::save_tuned() {
  run_.keeper.put_out([&](RunOutput&) {
    untuned_file_.emplace(model_file());
    rescale_outputs(tuning_->scaling, output_layer(), run_.config.output);
  });
}

void Evaluator::put_back_untuned() {
  run_.keeper.put_out([&](RunOutput&) {
    if (!untuned_file_) return;
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const std::string& name : untuned_file_->names()) tensors.emplace_back(name, untuned_file_->tensor(name));
    save_safetensors(model_file(), tensors, untuned_file_->metadata());
    untuned_file_.reset();
  });
}

std::map<std::string, at::Tensor> Evaluator::adapter() const {
  auto adapter = model_.best_adapter();
  if (tuning_) {
    for (auto& [name, tensor] : adapter) tensor = tensor.clone();
    rescale_outputs(tuning_->scaling, output_layer(), adapter);
  }
  return adapter;
}

}  // namespace mezzo::text
