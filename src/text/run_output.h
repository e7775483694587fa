#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/metrics.h"
#include "mezzo/text/progress_bar.h"
#include "mezzo/text/run_records.h"
#include "mezzo/text/tensorboard_writer.h"
#include "text/run_setup.h"
#include "text/training_parts.h"

namespace mezzo::text {

/// Everything a run shows and leaves behind, checkpoints apart: metrics.jsonl,
/// tensorboard/, progress, the model's folder, run.json, report.html.
class RunOutput {
 public:
  /// Makes the folder, after checking that no other run lies in it.
  /// @param resumed_step  where an earlier life of the run is taken up; nullopt starts afresh.
  RunOutput(const TrainConfig& config, const RunSetup& setup, const RunPlan& plan, std::optional<int64_t> resumed_step);

  void step(const StepRecord& record);
  void eval(const EvalRecord& record);
  /// Prints the text of the record, too.
  void diagnose(const DiagnoseRecord& record);
  void communication(const CommunicationRecord& record);
  /// Saves the weights as the run's model.
  void save_model(const BertForSequenceClassification& model,
                  const std::vector<std::pair<std::string, at::Tensor>>& weights);
  /// No more steps come: ends the progress bar.
  void training_done();
  void stopped(int64_t step);
  /// Writes the report, of `split` where there is one.
  void end(const EndRecord& record, const std::optional<ClassificationReport>& report, const std::string& split);

 private:
  void note(const std::string& line);
  void write_run_json(bool finished) const;

  const TrainConfig& config_;
  const RunSetup& setup_;
  std::optional<MetricsLog> metrics_;
  std::optional<TensorBoardWriter> board_;
  std::optional<ProgressBar> progress_;
  double smoothed_rate_ = 0;  // samples per second, over the last steps
};

}  // namespace mezzo::text
