#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/progress_bar.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/report/comparison.h"
#include "model_session.h"
#include "ranks.h"
#include "text_source.h"

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

/// A run's model, and the task that it was trained for.
struct Candidate {
  std::filesystem::path folder;
  std::shared_ptr<const text::Task> task;
};

Candidate candidate(const std::filesystem::path& folder) {
  std::error_code none;
  if (!std::filesystem::exists(folder / "model.safetensors", none)) {
    throw std::runtime_error(fmt::format(
        "{}: has no model.safetensors: the run has kept no model yet; leave it out, or --data", folder.string()));
  }
  return {folder, text::make_task(*text::ModelConfig::from_file(folder / "config.json"))};
}

/// The models' outputs for the same labelled texts.
TestedRuns test(const CompareFlags& flags) {
  std::vector<Candidate> candidates;
  for (const auto& run : flags.runs) {
    candidates.push_back(candidate(run));
    const text::Task &one = *candidates.front().task, &other = *candidates.back().task;
    const bool is_same_task = one.problem_type() == other.problem_type();
    if (!is_same_task || one.label_names() != other.label_names()) {
      throw UsageError(
          fmt::format("the models of {} and {} have {}: --data compares models of one task with the same labels "
                      "in the same order",
                      flags.runs.front().string(), run.string(), is_same_task ? "other labels" : "different tasks"));
    }
  }
  std::vector<at::Tensor> outputs;
  at::Tensor targets;
  std::string precision;
  for (const auto& [folder, task] : candidates) {
    ModelFlags model = flags.model;
    model.model = folder;
    ModelSession session(model, /*group=*/nullptr);
    precision = session.classifier().precision_name();
    const auto texts = read_labelled_texts(flags.data, flags.columns, *task, /*warns=*/outputs.empty());
    auto result = evaluate(session, texts).result;
    session.report_cut_texts();
    const auto [of_rows, of_targets] = task->head().rows == text::RowsPer::kToken
                                           ? text::of_labelled_words(result.outputs, result.texts.targets)
                                           : std::pair(result.outputs, result.texts.targets);
    if (targets.defined() && !at::equal(targets, of_targets)) {
      throw std::runtime_error(
          fmt::format("the models of {} and {} do not read the same words: one cuts texts that the other does "
                      "not; pass a --max-length that both have, or shorter texts",
                      flags.runs.front().string(), folder.string()));
    }
    targets = of_targets;
    outputs.push_back(of_rows);
  }
  constexpr uint64_t kSeed = 0;
  std::optional<text::ProgressBar> bar;
  const auto progress = [&](int64_t done, int64_t of) {
    if (!bar) bar.emplace(text::ProgressBar::Options{.label = "resample", .total = of});
    bar->update(done);
  };
  auto tested = text::test_models(*candidates.front().task, outputs, targets, text::resamples_for(outputs.front()),
                                  kSeed, progress);
  tested.of =
      flags.data.front().string() + (flags.data.size() > 1 ? fmt::format(" and {} more", flags.data.size() - 1) : "");
  tested.precision = precision;
  return tested;
}

Json to_json(const text::Interval& interval) {
  return {{"value", interval.value}, {"low", interval.low}, {"high", interval.high}};
}

std::string to_json(const std::vector<ComparedRun>& runs, const std::optional<TestedRuns>& tested) {
  auto list = Json::array();
  const auto settings = text::differing_settings(runs), environments = text::differing_environments(runs);
  for (size_t i = 0; i < runs.size(); ++i) {
    Json differing = Json::object(), run = {{"run", runs[i].name}, {"status", runs[i].status}};
    for (const auto& [name, values] : settings) differing[name] = values[i];
    run["settings"] = std::move(differing);
    run["environment"] = Json::object();
    for (const auto& [name, values] : environments) run["environment"][name] = values[i];
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

/// Whether writing `output` would replace a file that is read.
bool is_read(const std::filesystem::path& output, const CompareFlags& flags) {
  std::error_code none;
  const auto is_output = [&](const auto& file) { return std::filesystem::equivalent(file, output, none); };
  return std::ranges::any_of(flags.data, is_output) || std::ranges::any_of(flags.runs, [&](const auto& run) {
           return std::ranges::any_of(std::filesystem::directory_iterator(run, none), is_output);
         });
}

int run_compare(const CompareFlags& flags) {
  std::vector<ComparedRun> runs;
  for (const auto& folder : flags.runs) runs.push_back(text::read_run(folder));
  if (!flags.output.empty() && is_read(flags.output, flags)) {
    throw UsageError(
        fmt::format("--output {} is a file of a run, or of --data: the page would replace it; pass another",
                    flags.output.string()));
  }
  if (!flags.output.empty() && flags.output.extension() != ".html") {
    throw UsageError(fmt::format("--output is '{}', expected a name that ends in .html", flags.output.string()));
  }
  std::optional<text::AtomicFile> file;
  if (!flags.output.empty()) file.emplace(flags.output);
  const auto tested = flags.data.empty() ? std::nullopt : std::optional(test(flags));
  if (file) {
    file->write(text::render_comparison(runs, tested));
    file->commit();
  }
  text::write_stdout(flags.json ? to_json(runs, tested) : text::comparison_text(runs, tested));
  return 0;
}

}  // namespace

Run add_compare(CLI::App& app) {
  auto flags = std::make_shared<CompareFlags>();
  app.add_option("runs", flags->runs, "two or more folders of runs of mezzo train")->required()->type_name("DIR");
  app.add_option("--data", flags->data, "labelled texts to test the models on; once for each file")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_columns(app, flags->columns, /*has_labels=*/true);
  app.add_option("--output", flags->output, "file for an HTML page of the comparison: .html")->type_name("FILE");
  app.add_flag("--json", flags->json, "print a JSON object");
  flags->model.add_to(app, /*chooses_precision=*/true, /*names_model=*/false);
  for (const char* name : {"--precision", "--device", "--max-length", "--threads"}) {
    notes_of(app.get_option(name)).is_of_data = true;
  }
  app.footer(
      "Examples:\n"
      "  mezzo compare out/a out/b\n"
      "  mezzo compare out/a out/b --data test.jsonl --output comparison.html");
  return [flags, &app] {
    flags->model.check();
    check_has_data(app);
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
