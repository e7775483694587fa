#pragma once

#include <optional>

#include "mezzo/text/records/run_records.h"
#include "mezzo/text/tasks/task.h"
#include "text/train/training_model.h"
#include "text/train/training_run.h"

namespace mezzo::text {

/// Evaluates a run's weights, keeps the best on dev, and puts them back into the model in the end. With `ema_decay`
/// the weights to evaluate and keep are the averages. Every rank must make the same calls.
class Evaluator {
 public:
  /// Both must outlive this.
  Evaluator(TrainingRun& run, TrainingModel& model) : run_(run), model_(model) {}

  /// Evaluates the weights on dev. Saves them as the run's model if they are the best so far, by the task's first
  /// metric, of equals by the loss. Returns the loss; nullopt if the run was stopped, or if the model or the records
  /// could not be written: then the counters stay, and the resumed run evaluates here again.
  std::optional<double> evaluate_dev();

  /// After the last step: puts the best weights on dev into the model, or those of now if there is no dev.
  /// @throws c10::Error  if no evaluation gave finite numbers; a checkpoint is saved then
  void put_back_best();

  /// After put_back_best: fits what the task leaves to be fitted, such as a temperature, on dev. Then evaluates on
  /// test, or on dev without test. Returns nullopt if it was stopped.
  /// @pre  there are dev or test texts
  std::optional<Evaluation> evaluate_best();

 private:
  std::optional<double> evaluate_kept_weights();
  std::optional<Evaluation> evaluate(EvalRecord record, const TokenizedTexts& texts);
  at::Tensor outputs_of(const TokenizedTexts& texts);
  bool tune_task();
  std::string save_model() { return run_.keeper.save_model(run_.setup.model->config(), model_.kept_weights()); }

  TrainingRun& run_;
  TrainingModel& model_;
};

}  // namespace mezzo::text
