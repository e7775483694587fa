#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "mezzo/amp/scale_advice.h"

namespace mezzo::text {

class AppendFile;

/// What the CPU of the main rank was at in a step, wall time in seconds. What they leave of the step is agreeing with
/// other ranks on its outcome.
struct StepParts {
  double batch = 0;     ///< choosing texts and packing them
  double forward = 0;   ///< of all micro-batches, and the losses
  double backward = 0;  ///< with what of the exchange of gradients it does not hide
  double update = 0;    ///< check, unscaling and clipping of the gradients, and the optimizer
};

/// One optimizer step, as a line of `metrics.jsonl`. All amounts but times are the step's own (summed over
/// its micro-batches and ranks), not running totals.
struct StepRecord {
  int64_t step = 0;       ///< from 1; a skipped step counts
  double epoch = 0;       ///< passes over the training data so far; 0.5 is half of the first
  double loss = 0;        ///< mean over the step's samples, unscaled; NaN or infinite is written as null
  double lr = 0;          ///< learning rate the step was taken with
  double grad_norm = 0;   ///< of the unscaled gradients, before clipping
  double loss_scale = 1;  ///< the scale the step's loss was multiplied by
  bool skipped = false;   ///< a gradient was inf or NaN, so the weights stayed as they were
  int64_t samples = 0;    ///< texts in the step
  int64_t tokens = 0;     ///< real tokens in the step, padding not counted
  double seconds = 0;     ///< wall time of the step
  std::optional<StepParts> parts = std::nullopt;  ///< of that time; none where another device did the work
};

/// One evaluation of a split with the weights after `step` optimizer steps.
struct EvalRecord {
  int64_t step = 0;
  std::string split;  ///< "dev" or "test"
  double loss = 0;    ///< mean over the split's samples; NaN where an output was inf or NaN, and so are the metrics
  std::vector<std::pair<std::string, double>> metrics = {};  ///< by name, in their order; members of the line itself
  double seconds = 0;                                        ///< wall time of the evaluation
  bool is_final = false;  ///< of the model that the run keeps, after the last step; written, as "final", only if so
  std::vector<std::string> never_predicted = {};  ///< as of Evaluation; written only if there are any
  std::optional<double> majority_baseline = {};   ///< as of Evaluation; written only if there is one
};

/// What `--diagnose` found out at a step.
struct DiagnoseRecord {
  int64_t step = 0;
  /// "overflow": which gradients a step was skipped for. "first_op": where inf or NaN began.
  /// "cause": whether the loss scale is to blame. "gradients": how those counted so far are spread,
  /// and the scale that suits them.
  std::string kind;
  double loss_scale = 1;                  ///< at that step
  double recommended_scale = 0;           ///< of "gradients", and of "cause" where the scale is to blame
  std::string text;                       ///< for people, of several lines
  std::vector<GradientExponents> groups;  ///< of "gradients", by part of the model
};

/// A problem of the run, for its user.
struct WarningRecord {
  int64_t step = 0;  ///< at which it showed; 0: known at the end of the run, and dropped when the run is extended
  /// "diverged": the loss is inf, NaN or far above its start. "undefined_metric": the dev loss decided, as the metric
  /// that decides was NaN. "loss_rises": the training loss rose. "overfits": the
  /// loss on dev rose while that of training fell. "never_predicted": labels of dev texts that the kept model predicts
  /// for none. "majority_baseline": its accuracy on dev is not above that of the most frequent label.
  std::string kind;
  std::string text;  ///< one line: what is wrong, where, what to do
};

/// What the main rank of several exchanged with the others, up to `step`.
struct CommunicationRecord {
  int64_t step = 0;
  int64_t ranks = 0;
  int64_t steps = 0;           ///< that the amounts were gathered over: those since the run was started or resumed
  int64_t gradient_bytes = 0;  ///< handed to collectives; 0 through shared memory
  int64_t weight_bytes = 0;    ///< sent and received by a sharded optimizer
  int64_t buckets = 0;         ///< of gradients
  double seconds = 0;          ///< that exchanges of gradients were under way
  double exposed_seconds = 0;  ///< of them, those in which backward had nothing left to compute
};

/// The last line of a run that came to its end.
struct EndRecord {
  int64_t steps = 0;
  double minutes = 0;  ///< wall time of the training
  double samples_per_second = 0;
  double tokens_per_second = 0;
  int64_t peak_memory_bytes = 0;
  std::optional<int64_t> best_step = {};  ///< whose weights the run keeps: the best on dev; null without dev
};

/// What a line of a `metrics.jsonl` may be.
using RunRecord = std::variant<StepRecord, EvalRecord, DiagnoseRecord, CommunicationRecord, WarningRecord, EndRecord>;

/// What a `metrics.jsonl` holds, each kind in the order of the file.
struct RunRecords {
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evals;
  std::vector<DiagnoseRecord> diagnoses;
  std::vector<CommunicationRecord> communications;
  std::vector<WarningRecord> warnings;
  std::optional<EndRecord> end;  ///< the last one, when a file holds several
  int64_t unknown_events = 0;    ///< lines with an `event` this version does not know; they are passed over
};

/// The record as one line of JSON without the line feed, keys in the order of the struct. Numbers
/// are written in the few digits that read back as the same double; NaN and infinities, which JSON
/// lacks, as null.
std::string to_json(const RunRecord& record);

/// Reads a `metrics.jsonl`; null reads back as NaN. Unknown keys and events are passed over, so
/// that a later version's file can be read, and so is a last line that was cut off in the writing.
/// @throws c10::ValueError  for a line that is not such a record, with file and line; c10::Error if
///     the file cannot be read
RunRecords read_run_records(const std::filesystem::path& path);

/// Appends records to a `metrics.jsonl`, each line in one write as it is made: what was appended
/// survives the death of the process (though not of the machine), and a reader sees whole lines.
/// Not thread-safe.
class MetricsLog {
 public:
  /// Starts an empty file, replacing one that is there.
  /// @throws c10::Error  if the file cannot be made.
  explicit MetricsLog(const std::filesystem::path& path);

  /// Goes on with the file of a run resumed after `step` steps, last evaluated at `last_eval_step`
  /// (nullopt: at the last of them): drops the records of later steps and evaluations, final
  /// evaluations, an end record, and a last line that was cut off; the others stay byte for byte. A
  /// missing file is started. The old file is replaced in one rename, so a crash leaves either the
  /// old one or the new.
  /// @throws c10::ValueError  for a line that is not a record, with the file unchanged; c10::Error
  ///     if it cannot be read or written
  static MetricsLog resume(const std::filesystem::path& path,
                           int64_t step,
                           std::optional<int64_t> last_eval_step = std::nullopt);

  /// @throws c10::Error  if the file was removed or replaced, or the line could not be written,
  ///     e.g. on a full disk; what is missing of it is written before the next one, or by flush()
  void append(const RunRecord& record);

  /// From then on what was appended survives the death of the machine, too.
  /// @throws c10::Error  if the disk does not take it.
  void flush();

 private:
  MetricsLog(const std::filesystem::path& path, int flags);
  void write();

  std::shared_ptr<AppendFile> file_;
};

}  // namespace mezzo::text
