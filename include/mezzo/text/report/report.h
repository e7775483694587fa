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

/// A text, or a word with its context, whose label or labels were predicted wrongly.
struct MisreadText {
  std::string text;         ///< the text or word
  std::string label;        ///< its label or labels
  std::string predicted;    ///< the predicted label or labels
  double score = 0;         ///< as in Mistake
  std::string before = "";  ///< context before a word
  std::string after = "";   ///< context after a word
  std::string place = "";   ///< "file:line"; empty if unknown
};

/// The contents of a report. All members except the records may be empty; their part of the page is
/// then omitted.
struct ReportInput {
  /// Names and values, in order.
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  std::string title = "Training report";               ///< model and data
  std::string when;                                    ///< a date, or start and end
  std::string notice;                                  ///< reason of an early end
  std::vector<StepRecord> steps;                       ///< from metrics.jsonl
  std::vector<EvalRecord> evals;                       ///< from metrics.jsonl
  std::vector<MetricInfo> metrics;                     ///< of the evaluations; the first chose the best model
  std::vector<DiagnoseRecord> diagnoses;               ///< of `--diagnose`
  std::vector<WarningRecord> warnings = {};            ///< problems of the run
  std::optional<EndRecord> end;                        ///< nullopt: the run has not finished
  std::optional<int64_t> best_step;                    ///< step of the best model on dev, whose weights are kept
  std::vector<std::string> label_names;                ///< by label; a label without a name is shown by its number
  std::string evaluated;                               ///< split and model of the next three members
  std::vector<std::vector<int64_t>> confusion_matrix;  ///< counts, [true label][predicted label]
  std::vector<CalibrationBin> calibration;             ///< confidence and accuracy of its predictions
  std::string evaluation_report;                       ///< Evaluation::report of the task
  Pairs settings;                                      ///< settings that differ from the defaults, in order
  Pairs default_settings;                              ///< settings with default values
  Pairs environment;                                   ///< versions, machine
  std::vector<MisreadText> misread = {};               ///< the most confident mistakes, in order
  std::vector<std::string> notes = {};                 ///< on data and model; problems begin with "warning: "
  Pairs commands = {};                                 ///< shell commands by purpose
  std::vector<int64_t> train_counts = {};              ///< training texts, or words, of each label
  bool labels_words = false;                           ///< each word has a label, not each text
  std::vector<int64_t> train_lengths = {};             ///< tokens of each training text
};

/// Renders `report.html`. Warnings and headline numbers come first. Accuracy is shown with the
/// majority baseline and a 95 % confidence interval. Then follow:
/// * The commands of the run and for its model.
/// * Curves over the steps, skipped steps, results of `--diagnose`.
/// * Quality: confusion matrix, labels, mistakes with file and line, calibration.
/// * Evaluations, time, training data, notes, settings, environment.
///
/// The page is one self-contained file without scripts or external resources. It follows the
/// reader's light or dark preference, and fits print and narrow screens. All strings are escaped,
/// so texts and names may have any source. Equal input gives equal bytes.
///
/// Curves of long runs keep only the least and greatest value of each pixel column, so the page
/// stays under 1 MB. Shares are in percent with one decimal, other numbers have four digits.
/// @throws c10::ValueError  if the confusion matrix is not square
std::string render_report(const ReportInput& input);

}  // namespace mezzo::text
