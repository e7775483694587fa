#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/report/run_records.h"
#include "mezzo/text/tasks/metrics.h"
#include "mezzo/text/tasks/scores.h"

namespace mezzo::text {

/// A text, or a word between what comes before and after it, whose label or labels were not predicted.
struct MisreadText {
  std::string text, label, predicted;
  double score = 0;  ///< as of Mistake
  std::string before = "", after = "";
  std::string place = "";  ///< "file:line"; empty if it is not known
};

/// What a report is made of. Everything but the records may be left empty; its part of the page is
/// left out then.
struct ReportInput {
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  std::string title = "Training report";  ///< what was trained on what
  std::string when;                       ///< a date, or from when to when
  std::string notice;                     ///< how the run ended, where it did not come to its end
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evals;
  std::vector<MetricInfo> metrics;  ///< of the evaluations; the first is what the best model was chosen by
  std::vector<DiagnoseRecord> diagnoses;
  std::vector<WarningRecord> warnings = {};
  std::optional<EndRecord> end;                        ///< nullopt: the run has not come to its end
  std::optional<int64_t> best_step;                    ///< whose weights are kept, being the best on dev so far
  std::vector<std::string> label_names;                ///< by label; a label without a name is shown by its number
  std::string evaluated;                               ///< what the three below are of: split and model
  std::vector<std::vector<int64_t>> confusion_matrix;  ///< counts, [true label][predicted label]
  std::vector<CalibrationBin> calibration;             ///< how sure its predictions are, and how often right
  std::string evaluation_report;                       ///< Evaluation::report of the task
  Pairs settings;                                      ///< in their order, which those that are no defaults come before
  Pairs default_settings;                              ///< what they would be if nobody had chosen
  Pairs environment;                                   ///< versions, machine
  std::vector<MisreadText> misread = {};               ///< the surest mistakes, in their order
  std::vector<std::string> notes = {};      ///< on data and model; those on what may be wrong begin with "warning: "
  Pairs commands = {};                      ///< what to type or to run, by its purpose
  std::vector<int64_t> train_counts = {};   ///< training texts, or words, of each label
  bool labels_words = false;                ///< each word has a label, not each text
  std::vector<int64_t> train_lengths = {};  ///< tokens of each training text
};

/// Renders `report.html`. Warnings and headline numbers come first: accuracy has the majority baseline beside it, and a
/// 95 % confidence interval. Then follow:
/// - the commands of the run and for its model
/// - curves over the steps, skipped steps, what `--diagnose` found
/// - quality: confusion matrix, labels, mistakes with file and line, calibration
/// - evaluations, time, training data, notes, settings, environment
///
/// The page is one self-contained file: no script, nothing loaded, light and dark by the reader's preference, fit for
/// print and narrow screens. All strings are escaped, so texts and names may come from anywhere. Long runs are thinned
/// to what the pixels can show (least and greatest value of each column), which keeps the page under 1 MB. Equal input
/// gives equal bytes. Shares are in percent with one decimal, other numbers have four digits.
/// @throws c10::ValueError  if the confusion matrix is not square
std::string render_report(const ReportInput& input);

}  // namespace mezzo::text
