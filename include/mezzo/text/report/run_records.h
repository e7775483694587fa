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

/// The parts of a step on the CPU of the main rank, wall time in seconds. The rest of the step is
/// the agreement with other ranks on its result.
struct StepParts {
  double batch = 0;     ///< selection and packing of texts
  double forward = 0;   ///< of all micro-batches, with the losses
  double backward = 0;  ///< with the exposed part of the gradients' exchange
  double update = 0;    ///< check, unscaling and clipping of the gradients, and the optimizer
};

/// One optimizer step, as a line of `metrics.jsonl`. All amounts except times belong to this step,
/// summed over its micro-batches and ranks. They are not running totals.
struct StepRecord {
  int64_t step = 0;       ///< from 1; a skipped step counts
  double epoch = 0;       ///< passes over the training data so far; 0.5 is half of the first
  double loss = 0;        ///< mean over the step's samples, unscaled; NaN or infinite is written as null
  double lr = 0;          ///< learning rate of the step
  double grad_norm = 0;   ///< of the unscaled gradients, before clipping
  double loss_scale = 1;  ///< loss scale of the step
  bool skipped = false;   ///< a gradient was inf or NaN, so the weights did not change
  int64_t samples = 0;    ///< texts in the step
  int64_t tokens = 0;     ///< tokens in the step, without padding
  double seconds = 0;     ///< wall time of the step
  std::optional<StepParts> parts = std::nullopt;  ///< of that time; nullopt if another device did the work
};

/// One evaluation of a split with the weights after `step` optimizer steps.
struct EvalRecord {
  int64_t step = 0;   ///< optimizer steps before the evaluation
  std::string split;  ///< "dev" or "test"
  double loss = 0;    ///< mean over the split's samples; if an output was inf or NaN, loss and metrics are NaN
  std::vector<std::pair<std::string, double>> metrics = {};  ///< by name, in order; each is a member of the line
  double seconds = 0;                                        ///< wall time of the evaluation
  bool is_final = false;  ///< of the kept model, after the last step; "final" is written only if true
  std::vector<std::string> never_predicted = {};  ///< as in Evaluation; written only if not empty
  std::optional<double> majority_baseline = {};   ///< as in Evaluation; written only if it has a value
};

/// A result of `--diagnose` at a step.
struct DiagnoseRecord {
  int64_t step = 0;  ///< optimizer step, from 1
  /// "overflow": the gradients that caused a skipped step. "first_op": the first op with inf or
  /// NaN. "cause": whether the loss scale is the cause. "gradients": the distribution of the
  /// gradients counted so far, and a suitable scale.
  std::string kind;
  double loss_scale = 1;                  ///< at that step
  double recommended_scale = 0;           ///< of "gradients", and of "cause" if the scale is the cause
  std::string text;                       ///< for people, with several lines
  std::vector<GradientExponents> groups;  ///< of "gradients", by part of the model
};

/// A problem of the run, for its user.
struct WarningRecord {
  int64_t step = 0;  ///< step of the problem; 0: found at the end, and removed when the run is extended
  /// One of these words:
  /// * `"diverged"`: the loss is inf, NaN or far above its start.
  /// * `"undefined_metric"`: the deciding metric was NaN, so the dev loss decided.
  /// * `"loss_rises"`: the training loss rose.
  /// * `"overfits"`: the loss on dev rose while the training loss fell.
  /// * `"never_predicted"`: the kept model predicts some labels of dev texts for no text.
  /// * `"majority_baseline"`: its accuracy on dev is not above the share of the most frequent
  ///   label.
  std::string kind;
  std::string text;  ///< one line: problem, place, remedy
};

/// The traffic between the main rank of several and the others, up to `step`.
struct CommunicationRecord {
  int64_t step = 0;            ///< optimizer step
  int64_t ranks = 0;           ///< number of ranks
  int64_t steps = 0;           ///< number of steps in the amounts: since the run was started or resumed
  int64_t gradient_bytes = 0;  ///< passed to collectives; 0 with shared memory
  int64_t weight_bytes = 0;    ///< sent and received by a sharded optimizer
  int64_t buckets = 0;         ///< of gradients
  double seconds = 0;          ///< duration of the exchanges of gradients
  double exposed_seconds = 0;  ///< part of `seconds` after the end of backward's computation
};

/// The last line of a finished run.
struct EndRecord {
  int64_t steps = 0;                      ///< optimizer steps
  double minutes = 0;                     ///< wall time of the training
  double samples_per_second = 0;          ///< texts, over the optimizer steps
  double tokens_per_second = 0;           ///< tokens, over the optimizer steps
  int64_t peak_memory_bytes = 0;          ///< of the device, or of the process on a CPU
  std::optional<int64_t> best_step = {};  ///< step of the kept weights, the best on dev; null without dev
};

/// A line of a `metrics.jsonl`.
using RunRecord = std::variant<StepRecord, EvalRecord, DiagnoseRecord, CommunicationRecord, WarningRecord, EndRecord>;

/// The records of a `metrics.jsonl`, each kind in the order of the file.
struct RunRecords {
  std::vector<StepRecord> steps;                    ///< one per optimizer step
  std::vector<EvalRecord> evals;                    ///< evaluations
  std::vector<DiagnoseRecord> diagnoses;            ///< results of `--diagnose`
  std::vector<CommunicationRecord> communications;  ///< traffic between ranks
  std::vector<WarningRecord> warnings;              ///< problems of the run
  std::optional<EndRecord> end;                     ///< the last one, if a file has several
  int64_t unknown_events = 0;                       ///< ignored lines with an unknown `event`
};

/// The record as one line of JSON without the line feed, keys in the order of the struct. A number
/// has the fewest digits that read back as the same double. NaN and infinities, which JSON lacks,
/// become null.
std::string to_json(const RunRecord& record);

/// Reads a `metrics.jsonl`; null becomes NaN. Unknown keys and events are ignored, so that a later
/// version's file can be read. An incomplete last line is also ignored.
/// @throws c10::ValueError  for an invalid line, with file and line
/// @throws c10::Error  if the file cannot be read
RunRecords read_run_records(const std::filesystem::path& path);

/// Appends records to a `metrics.jsonl`, each line in one write. Appended lines survive the end of
/// the process, but not of the machine. A reader sees whole lines. Not thread-safe.
class MetricsLog {
 public:
  /// Starts an empty file, or replaces an existing file.
  /// @throws c10::Error  if the file cannot be created
  explicit MetricsLog(const std::filesystem::path& path);

  /// Continues the file of a run resumed after `step` steps, last evaluated at `last_eval_step`
  /// (nullopt: at `step`). Removes records of later steps and evaluations, final evaluations, an
  /// end record, and an incomplete last line. Other lines stay unchanged. A missing file is
  /// created. The old file is replaced by one rename, so a crash leaves either the old or the new
  /// file.
  /// @throws c10::ValueError  for an invalid line; the file has not changed then
  /// @throws c10::Error  if the file cannot be read or written
  static MetricsLog resume(const std::filesystem::path& path,
                           int64_t step,
                           std::optional<int64_t> last_eval_step = std::nullopt);

  /// @throws c10::Error  If the file was removed or replaced, or the line could not be written,
  ///     e.g. on a full disk. The missing part is written before the next line, or by flush().
  void append(const RunRecord& record);

  /// Flushes to the disk: all appended lines then also survive the end of the machine.
  /// @throws c10::Error  if the disk reports an error
  void flush();

 private:
  MetricsLog(const std::filesystem::path& path, int flags);
  void write();

  std::shared_ptr<AppendFile> file_;
};

}  // namespace mezzo::text
