#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/report/run_records.h"
#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// A run of `mezzo train`, read from its folder.
struct ComparedRun {
  std::string name;  ///< the folder, as given
  /// From run.json: "finished", "stopped", "failed" or "running"; "broken off" if its process has ended.
  std::string status;
  std::vector<std::pair<std::string, std::string>> settings;     ///< by name
  std::vector<std::pair<std::string, std::string>> environment;  ///< versions and machine
  std::optional<int64_t> best_step;                              ///< step of the best model on dev
  RunRecords records;                                            ///< from metrics.jsonl

  /// The most relevant evaluation of its model: the final one, else the one of the best step, else
  /// the last. Null without evaluations.
  const EvalRecord* evaluation() const;
};

/// @throws c10::ValueError  for a folder without a run of mezzo, or with damaged files
ComparedRun read_run(const std::filesystem::path& folder);

/// A name, and its value in each of several runs; "" if a run lacks it.
struct ComparedValues {
  std::string name;                 ///< of a setting or version
  std::vector<std::string> values;  ///< one per run
};

/// The settings that differ between runs, except the output folder and the resumed checkpoint.
std::vector<ComparedValues> differing_settings(std::span<const ComparedRun> runs);

/// The differences between the programs and machines of the runs.
std::vector<ComparedValues> differing_environments(std::span<const ComparedRun> runs);

/// A number, and its 95 % bootstrap interval.
struct Interval {
  double value = 0;  ///< the number
  double low = 0;    ///< lower end of the interval
  double high = 0;   ///< upper end of the interval
};

/// A comparison of two models, by the first of the task's metrics.
struct PairedTest {
  Interval difference;  ///< the second model minus the first
  double p_value = 1;   ///< two-sided
};

/// The results of models on the same labelled texts.
struct TestedRuns {
  std::string of = {};                                ///< file name of the texts
  std::string precision = {};                         ///< of the models
  int64_t num_texts = 0;                              ///< number of texts
  int64_t resamples = 0;                              ///< number of resamples
  std::vector<MetricInfo> metrics = {};               ///< of the task
  std::vector<std::vector<Interval>> intervals = {};  ///< of each model, by metric
  std::vector<PairedTest> differences = {};           ///< between each later model and the first

  /// The intervals as text, one row per metric.
  std::vector<ComparedValues> rows() const;
  /// One line with texts, precision and number of resamples.
  std::string heading() const;
};

/// Scores of models with their uncertainty. Intervals are percentiles of the bootstrap (Efron
/// 1979): texts are drawn with replacement, the same for every model.
///
/// The p-value is from a permutation test by approximate randomisation (Noreen 1989). It is the
/// share of resamples with at least the observed difference, after the outputs of two models are
/// exchanged at random for each text. Resamples with an undefined metric are omitted from an
/// interval, and count against a difference.
/// @param outputs  of each model, at least one, as for Task::evaluate, for the same texts and with
///     labels in one order
/// @param resamples  at least 1
/// @param progress  called with the number of finished evaluations and their total
TestedRuns test_models(const Task& task,
                       std::span<const at::Tensor> outputs,
                       const at::Tensor& targets,
                       int64_t resamples,
                       uint64_t seed,
                       const std::function<void(int64_t done, int64_t of)>& progress = {});

/// Outputs and targets of labelled words, one after another, instead of tokens: for models with
/// different tokens.
/// @param outputs  [N, T, L]
/// @param targets  [N, T], TokenizedTexts::kNoTarget for tokens without target
/// @return [N, most words, L] and [N, most words], filled with zeros and kNoTarget
std::pair<at::Tensor, at::Tensor> of_labelled_words(const at::Tensor& outputs, const at::Tensor& targets);

/// 1,000, or fewer for a large number of outputs.
int64_t resamples_for(const at::Tensor& outputs);

/// Tables for people: the differences, the results of test_models(), and the result of each run.
std::string comparison_text(std::span<const ComparedRun> runs, const std::optional<TestedRuns>& tested);

/// A page in the style of report.html: the differences, quality and speed of each run, and their
/// curves in common charts.
/// @param runs  2 to kMostComparedRuns
std::string render_comparison(std::span<const ComparedRun> runs, const std::optional<TestedRuns>& tested);

/// The number of distinguishable colours in a chart.
constexpr size_t kMostComparedRuns = 8;  // colours that can be told apart

/// Rows of the same facts about each run, as text: its most relevant evaluation, and its costs.
std::vector<ComparedValues> outcomes(std::span<const ComparedRun> runs);

/// "0.6812 (0.6530 to 0.7094)"
std::string to_string(const Interval& interval);

}  // namespace mezzo::text
