#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "commands.h"
#include "labelled_texts.h"
#include "mezzo/text/compare/comparison.h"
#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/terminal/progress_bar.h"
#include "mezzo/text/terminal/standard_output.h"
#include "model_session.h"
#include "ranks.h"

namespace mezzo::app {
namespace {

using Json = nlohmann::ordered_json;
using text::ComparedRun, text::ComparedValues, text::TestedRuns;

struct CompareFlags {
  std::vector<std::filesystem::path> runs;
  ModelFlags model;
  std::vector<std::filesystem::path> data;
  text::ColumnNames columns;
  std::filesystem::path output;
  bool json = false;
};

/// A model's outputs as they would be without a fitted temperature, and with 0.5 for every threshold: what is exchanged
/// between models must mean the same.
at::Tensor plain_outputs(at::Tensor outputs, const text::ModelConfig& config) {
  outputs = outputs / config.softmax_temperature;
  if (!config.label_thresholds.empty()) {
    const auto thresholds = at::tensor(config.label_thresholds, at::kFloat);
    outputs = outputs - at::log(thresholds / (1 - thresholds));
  }
  return outputs;
}

/// What the models say of the same labelled texts.
TestedRuns test(const CompareFlags& flags) {
  std::shared_ptr<const text::Task> task;
  std::vector<at::Tensor> outputs;
  at::Tensor targets;
  for (const auto& run : flags.runs) {
    ModelFlags model = flags.model;
    model.model = run;
    ModelSession session(model, /*group=*/nullptr);
    const auto config = text::ModelConfig::from_file(run / "config.json"),
               plain = text::ModelConfig::from_file(run / "config.json");
    plain->softmax_temperature = 1;
    plain->label_thresholds.clear();
    const auto own = text::make_task(*plain);
    if (task && (own->problem_type() != task->problem_type() || own->label_names() != task->label_names())) {
      throw UsageError(
          fmt::format("the model of {} has another task, or other labels, than that of {}: --data compares models "
                      "of the same labels in the same order",
                      run.string(), flags.runs.front().string()));
    }
    const auto texts = read_labelled_texts(flags.data, flags.columns, *own, /*warns=*/!task);
    auto result = evaluate(session, texts).result;
    session.report_cut_texts();
    task = task ? task : own;
    targets = targets.defined() ? targets : result.texts.targets;
    outputs.push_back(plain_outputs(std::move(result.outputs), *config));
  }
  constexpr uint64_t kSeed = 0;
  std::optional<text::ProgressBar> progress;
  auto tested = text::test_models(*task, outputs, targets, text::resamples_for(outputs.front()), kSeed,
                                  [&](int64_t done, int64_t of) {
                                    if (!progress)
                                      progress.emplace(text::ProgressBar::Options{.label = "resample", .total = of});
                                    progress->update(done);
                                  });
  tested.of =
      flags.data.front().string() + (flags.data.size() > 1 ? fmt::format(" and {} more", flags.data.size() - 1) : "");
  return tested;
}

Json to_json(const text::Interval& interval) {
  return {{"value", interval.value}, {"low", interval.low}, {"high", interval.high}};
}

std::string to_json(const std::vector<ComparedRun>& runs, const std::optional<TestedRuns>& tested) {
  auto list = Json::array();
  const auto settings = text::differing_settings(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    Json differing = Json::object(), run = {{"run", runs[i].name}, {"status", runs[i].status}};
    for (const auto& [name, values] : settings) differing[name] = values[i];
    run["settings"] = std::move(differing);
    if (const auto* evaluation = runs[i].evaluation()) run["evaluation"] = Json::parse(text::to_json(*evaluation));
    if (runs[i].records.end) run["end"] = Json::parse(text::to_json(*runs[i].records.end));
    if (tested) {
      for (size_t metric = 0; metric < tested->metrics.size(); ++metric) {
        run["tested"][tested->metrics[metric].name] = to_json(tested->intervals[i][metric]);
      }
      if (i > 0) {
        const auto& [difference, p_value] = tested->differences[i - 1];
        run["beyond_the_first"] = {
            {"metric", tested->metrics.front().name}, {"difference", to_json(difference)}, {"p_value", p_value}};
      }
    }
    list.push_back(std::move(run));
  }
  return Json{{"runs", std::move(list)}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Columns as wide as what stands in them.
std::string to_table(const std::vector<ComparedRun>& runs,
                     const char* heading,
                     const std::vector<ComparedValues>& rows) {
  std::vector<size_t> widths(runs.size() + 1, std::string_view(heading).size());
  for (size_t i = 0; i < runs.size(); ++i) widths[i + 1] = runs[i].name.size();
  for (const auto& [name, values] : rows) {
    widths.front() = std::max(widths.front(), name.size());
    for (size_t i = 0; i < values.size(); ++i) widths[i + 1] = std::max(widths[i + 1], values[i].size());
  }
  std::string text = fmt::format("{:<{}}", heading, widths.front());
  for (size_t i = 0; i < runs.size(); ++i) text += fmt::format("  {:>{}}", runs[i].name, widths[i + 1]);
  text += "\n";
  for (const auto& [name, values] : rows) {
    text += fmt::format("{:<{}}", name, widths.front());
    for (size_t i = 0; i < values.size(); ++i) text += fmt::format("  {:>{}}", values[i], widths[i + 1]);
    text += "\n";
  }
  return rows.empty() ? text + "none\n\n" : text + "\n";
}

std::string to_text(const std::vector<ComparedRun>& runs, const std::optional<TestedRuns>& tested) {
  std::string text = to_table(runs, "settings that differ", text::differing_settings(runs));
  if (tested) {
    std::vector<ComparedValues> rows;
    for (size_t metric = 0; metric < tested->metrics.size(); ++metric) {
      ComparedValues row{tested->metrics[metric].title, {}};
      for (const auto& intervals : tested->intervals) row.values.push_back(to_string(intervals[metric]));
      rows.push_back(std::move(row));
    }
    text += to_table(runs, fmt::format("{} texts of {}", tested->num_texts, tested->of).c_str(), rows);
    for (size_t i = 0; i < tested->differences.size(); ++i) {
      const auto& [difference, p_value] = tested->differences[i];
      text += fmt::format("{} of {} beyond that of {}: {}, p = {:.3g}\n", tested->metrics.front().title,
                          runs[i + 1].name, runs.front().name, to_string(difference), p_value);
    }
    text += fmt::format("(95 % of {} bootstrap samples; p by exchanging outputs at random)\n\n", tested->resamples);
  }
  return text + to_table(runs, "outcomes", text::outcomes(runs));
}

int run_compare(const CompareFlags& flags) {
  std::vector<ComparedRun> runs;
  for (const auto& folder : flags.runs) runs.push_back(text::read_run(folder));
  const auto tested = flags.data.empty() ? std::nullopt : std::optional(test(flags));
  if (!flags.output.empty()) {
    text::AtomicFile file(flags.output);
    file.write(text::render_comparison(runs, tested));
    file.commit();
  }
  text::write_stdout(flags.json ? to_json(runs, tested) : to_text(runs, tested));
  return 0;
}

}  // namespace

Run add_compare(CLI::App& app) {
  auto flags = std::make_shared<CompareFlags>();
  app.add_option("runs", flags->runs, "two or more folders that mezzo train has written")->required();
  app.add_option("--data", flags->data,
                 "labelled texts on which the runs' models are measured, and tested against the first");
  add_columns(app, flags->columns, /*has_labels=*/true);
  app.add_option("--output", flags->output, "an HTML page of the comparison, with curves");
  app.add_flag("--json", flags->json, "an object instead of tables");
  flags->model.add_to(app, /*chooses_precision=*/true, /*names_model=*/false);
  return [flags] {
    flags->model.check();
    if (flags->runs.size() < 2 || flags->runs.size() > text::kMostComparedRuns) {
      throw UsageError(fmt::format("{} to compare; pass 2 to {} folders of runs",
                                   flags->runs.size() == 1 ? "one run" : fmt::format("{} runs", flags->runs.size()),
                                   text::kMostComparedRuns));
    }
    for (auto run = flags->runs.begin(); run != flags->runs.end(); ++run) {
      const auto is_same = [&](const auto& other) {
        std::error_code none;
        return other == *run || std::filesystem::equivalent(other, *run, none);
      };
      if (std::any_of(flags->runs.begin(), run, is_same)) {
        throw UsageError(fmt::format("{} is named twice", run->string()));
      }
    }
    return run_compare(*flags);
  };
}

}  // namespace mezzo::app
