#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/io/progress_bar.h"
#include "mezzo/text/report/run_records.h"
#include "mezzo/text/report/tensorboard_writer.h"
#include "mezzo/text/tasks/task.h"
#include "text/report/findings.h"
#include "text/report/run_warnings.h"
#include "text/train/kubeflow_status.h"
#include "text/train/run_folder.h"
#include "text/train/run_plan.h"
#include "text/train/run_setup.h"

namespace mezzo::text {

/// Everything a run shows and leaves behind, checkpoints apart: metrics.jsonl, tensorboard/, progress, the model's
/// folder, run.json, report.html. Unless a run is killed, the last two record how it ended.
class RunOutput {
 public:
  /// @param folder  after its check: made and cleared here.
  /// @param resumed  where an earlier life of the run is taken up; nullopt starts afresh.
  RunOutput(const TrainConfig& config,
            const RunSetup& setup,
            const RunPlan& plan,
            const RunIdentity& identity,
            RunFolder& folder,
            const std::optional<Checkpoint>& resumed);

  void step(const StepRecord& record);
  void eval(const EvalRecord& record);
  /// The weights of its step are the best so far.
  void best(const BestModel& model);
  /// Prints the text of the record, unless the step before had the same: such steps are counted.
  void diagnose(const DiagnoseRecord& record);
  void communication(const CommunicationRecord& record);
  /// Flushes the records so far to the disk, so that after a power cut no checkpoint lacks the records of its steps.
  void flush() { metrics_->flush(); }
  /// Prints the line, unless the run is quiet.
  void note(const std::string& line);
  /// Prints the line, however quiet the run is.
  void warn(const std::string& line);
  /// No more steps come: ends the progress bar.
  void training_done();

  // One of these at last. Each writes run.json and report.html. The first two only report files that they cannot write,
  // since an error, or a saved checkpoint, matters more.
  void stopped(int64_t step);
  void failed(int64_t step, const std::string& error);
  /// @param evaluation  on `split`; none where nothing was evaluated.
  void end(const EndRecord& record, const std::optional<Evaluation>& evaluation, const std::string& split);
  /// Prints what end() was told on stdout, as the last thing of all.
  void print_summary() const;

 private:
  /// The output before the first step.
  void begin(const RunPlan& plan, RunFolder& folder, const std::optional<Checkpoint>& resumed, bool has_records);
  /// Only the first of each kind.
  void tell(const WarningRecord& warning);
  /// The skipped steps that were only counted.
  void tell_of_repeats();
  /// "model of step 150"
  std::string kept_model(int64_t last_step) const;
  void write_report(const std::string& notice,
                    const std::optional<Evaluation>& evaluation,
                    const std::string& evaluated) const;
  void write_ending(const std::string& status, int64_t step, const std::string& notice, const std::string& error = "");
  /// @param status  running, finished, stopped or failed.
  void write_run_json(const std::string& status, int64_t steps, const std::string& error = "") const;

  const TrainConfig& config_;
  const RunSetup& setup_;
  const RunIdentity& identity_;
  std::string run_;  // its name
  const int64_t total_steps_;
  bool has_trained_;  // whether a step so far was not skipped
  const std::time_t started_ = std::time(nullptr);
  std::optional<BestModel> best_;
  std::map<std::string, Finding> findings_;  // the last ones printed, by kind
  RunWarnings watch_;
  std::vector<WarningRecord> warnings_;  // told so far
  std::optional<MetricsLog> metrics_;
  std::optional<TensorBoardWriter> board_;
  std::optional<ProgressBar> progress_;
  std::unique_ptr<KubeflowStatus> kubeflow_;  // null without
  std::string summary_;
  double smoothed_rate_ = 0, smoothed_loss_ = 0;  // samples per second and loss of the last steps; 0: none yet
};

}  // namespace mezzo::text
