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

/// A run of `mezzo train`, as its folder tells of it.
struct ComparedRun {
  std::string name;  ///< the folder, as it was given
  std::string
      status;  ///< as run.json has it: "finished", "stopped", "failed", "running"; "broken off": its process is gone
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::pair<std::string, std::string>> environment;  ///< versions and machine
  std::optional<int64_t> best_step;
  RunRecords records;

  /// What tells most of the model that it leaves: its final evaluation, else that of the best step, else the last; null
  /// where there is none.
  const EvalRecord* evaluation() const;
};

/// @throws c10::ValueError  for a folder that no run of mezzo wrote, or whose files are damaged
ComparedRun read_run(const std::filesystem::path& folder);

/// A name, and what it is in each of several runs; "" where a run does not have it.
struct ComparedValues {
  std::string name;
  std::vector<std::string> values;
};

/// The settings that are not the same in all runs, but for where a run is written to and what it goes on with.
std::vector<ComparedValues> differing_settings(std::span<const ComparedRun> runs);

/// What is not the same of the programs and machines that the runs were made by.
std::vector<ComparedValues> differing_environments(std::span<const ComparedRun> runs);

/// A number, and its 95 % bootstrap interval.
struct Interval {
  double value = 0, low = 0, high = 0;
};

/// One model beside another, by the first of the task's metrics.
struct PairedTest {
  Interval difference;  ///< of the second from the first
  double p_value = 1;   ///< two-sided
};

/// What models said of the same labelled texts.
struct TestedRuns {
  std::string of = {};         ///< the texts: a file's name
  std::string precision = {};  ///< of the models
  int64_t num_texts = 0, resamples = 0;
  std::vector<MetricInfo> metrics = {};
  std::vector<std::vector<Interval>> intervals = {};  ///< of each model, by metric
  std::vector<PairedTest> differences = {};           ///< of each model but the first, from the first

  /// The intervals as text, a row a metric.
  std::vector<ComparedValues> rows() const;
  std::string heading() const;
};

/// How good models are, and how sure that is. Intervals are percentiles of the bootstrap (Efron 1979): texts drawn anew
/// with replacement, the same for every model. A p-value is that of approximate randomisation (Noreen 1989): how often
/// models are at least as far apart whose outputs are exchanged for each text by the toss of a coin. Resamples in which
/// a metric is not defined do not count for an interval, and count against a difference.
/// @param outputs  of each model, at least one, as of Task::evaluate, for the same texts and with labels in one order
/// @param resamples  at least 1
/// @param progress  told how many evaluations of how many are done
TestedRuns test_models(const Task& task,
                       std::span<const at::Tensor> outputs,
                       const at::Tensor& targets,
                       int64_t resamples,
                       uint64_t seed,
                       const std::function<void(int64_t done, int64_t of)>& progress = {});

/// Outputs and targets of words that have labels, one after the other, in place of tokens: for models of other tokens.
/// @param outputs  [N, T, L]
/// @param targets  [N, T], TokenizedTexts::kNoTarget where there is none
/// @return [N, most words, L] and [N, most words], filled up with zeros and kNoTarget
std::pair<at::Tensor, at::Tensor> of_labelled_words(const at::Tensor& outputs, const at::Tensor& targets);

/// 1,000, or fewer where there are very many outputs.
int64_t resamples_for(const at::Tensor& outputs);

/// Tables for people: what differs, what test_models() found, and what became of each run.
std::string comparison_text(std::span<const ComparedRun> runs, const std::optional<TestedRuns>& tested);

/// A page in the manner of report.html: what differs, how good and how fast each is, and their curves on top of each
/// other.
/// @param runs  2 to kMostComparedRuns
std::string render_comparison(std::span<const ComparedRun> runs, const std::optional<TestedRuns>& tested);

constexpr size_t kMostComparedRuns = 8;  // colours that can be told apart

/// Rows of the same facts about each run, as text: the evaluation that the run tells of itself, and what it took.
std::vector<ComparedValues> outcomes(std::span<const ComparedRun> runs);

/// "0.6812 (0.6530 to 0.7094)"
std::string to_string(const Interval& interval);

}  // namespace mezzo::text
