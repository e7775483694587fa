#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/text/io/safetensors.h"
#include "mezzo/text/report/run_records.h"
#include "mezzo/text/tasks/task.h"
#include "text/train/step_clock.h"
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
  /// metric, of equals by the loss. Returns the loss. Returns nullopt if the run was stopped, or if the model or the
  /// records could not be written. Then the counters stay, and the resumed run evaluates here again.
  std::optional<double> evaluate_dev();

  /// After the last step: puts the best weights on dev into the model. Without dev, keeps the
  /// current weights.
  /// @throws c10::Error  if no evaluation gave finite numbers; a checkpoint is saved then
  void put_back_best();

  /// After put_back_best: fits the outputs to dev, for example by a temperature, and evaluates on test, or on dev
  /// without test. Then saves the fitted model. In half precision, its outputs differ from the evaluated ones by
  /// rounding. The model in memory stays as it was. Returns nullopt if it was stopped.
  /// @pre  there are dev or test texts
  std::optional<Evaluation> evaluate_best();
  /// The best weights that were trained, fitted as the saved model is.
  std::map<std::string, at::Tensor> adapter() const;

  /// Puts the saved model back as it was before it was fitted. To be called before a checkpoint, which may copy it.
  void put_back_untuned();

 private:
  std::optional<double> evaluate_kept_weights();
  Evaluation evaluate(EvalRecord record, const TokenizedTexts& texts, const at::Tensor& outputs);
  at::Tensor outputs_of(const TokenizedTexts& texts);
  void save_tuned();
  std::filesystem::path model_file() const { return run_.config.output / kWeightsFile; }
  std::string_view output_layer() const { return run_.setup.model->output_layer(); }
  std::string save_model() { return run_.keeper.save_model(run_.setup.model->config(), model_.kept_weights()); }

  TrainingRun& run_;
  TrainingModel& model_;
  Clock::time_point begin_;  // of the last outputs_of()
  std::optional<Tuning> tuning_;
  std::optional<SafetensorsReader> untuned_file_;  // of the saved model
};

}  // namespace mezzo::text
