#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <map>

#include "mezzo/text/report/comparison.h"
#include "system/unique_fd.h"
#include "text/io/json.h"
#include "text/io/printable.h"
#include "text/io/read_error.h"
#include "text/io/words.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

/// The settings for a run's output, and for how it was started: they do not make it another run.
constexpr const char* kNotCompared[] = {"output", "overwrite", "resume", "quiet", "keep"};

std::string text_of(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string four_digits(double value) { return std::isfinite(value) ? fmt::format("{:.4g}", value) : "–"; }

/// "macro F1" of "macro_f1".
std::string title_of(std::string name) {
  std::ranges::replace(name, '_', ' ');
  if (name.ends_with(" f1")) name.replace(name.size() - 2, 2, "F1");
  return name;
}

/// "dev accuracy", and so on, of the evaluation that tells most.
std::map<std::string, double> metrics_of(const EvalRecord& evaluation) {
  std::map<std::string, double> values{{evaluation.split + " loss", evaluation.loss}};
  for (const auto& [name, value] : evaluation.metrics) values[evaluation.split + " " + title_of(name)] = value;
  return values;
}

/// The status of a run whose process is gone, but wrote no end.
constexpr const char* kBrokenOff = "broken off";

/// False if no process holds the lock that a run has on its folder.
bool may_be_running(const fs::path& folder) {
  const UniqueFd lock(::open((folder / ".run.lock").c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.get() < 0) return errno != ENOENT;
  return ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0;
}

/// Nothing is read that would wait, or never end.
/// @param what  follows from its absence
void check_file(const fs::path& folder, const char* name, const char* what) {
  std::error_code error;
  const auto kind = fs::status(folder / name, error).type();
  TORCH_CHECK_VALUE(kind != fs::file_type::not_found, folder.string(), ": has no ", name, ", ", what, ".",
                    did_you_mean_file(folder));
  TORCH_CHECK_VALUE(!error, (folder / name).string(), ": cannot be read: ", error.message(), ".");
  TORCH_CHECK_VALUE(kind == fs::file_type::regular, (folder / name).string(), ": is not a regular file.");
}

}  // namespace

const EvalRecord* ComparedRun::evaluation() const {
  const auto& evals = records.evals;
  const auto last = [&](const auto& is_one) -> const EvalRecord* {
    const auto found = std::find_if(evals.rbegin(), evals.rend(), is_one);
    return found == evals.rend() ? nullptr : &*found;
  };
  if (const auto* final = last([](const EvalRecord& eval) { return eval.is_final; })) return final;
  const auto* best = last([&](const EvalRecord& eval) { return eval.split == "dev" && eval.step == best_step; });
  return best != nullptr || evals.empty() ? best : &evals.back();
}

ComparedRun read_run(const fs::path& folder) {
  std::error_code none;
  TORCH_CHECK_VALUE(fs::is_directory(folder, none), folder.string(), ": there is no such folder.");
  TORCH_CHECK_VALUE(!fs::exists(folder / "folds.json", none), folder.string(),
                    ": holds the folds of a run; name the folds to compare, such as ", (folder / "fold-1").string());
  check_file(folder, "run.json", "so it is not an OUTPUT of mezzo train");
  const nlohmann::json json = read_json_object(folder / "run.json");
  ComparedRun run{
      .name = folder.string(), .status = "", .settings = {}, .environment = {}, .best_step = {}, .records = {}};
  const auto member = [&](const char* key) { return json.contains(key) ? json[key] : nlohmann::json(); };
  const nlohmann::json settings = member("settings"), status = member("status"), best = member("best_step");
  TORCH_CHECK_VALUE(settings.is_object() && status.is_string() && (best.is_null() || best.is_number_integer()),
                    (folder / "run.json").string(), ": lacks settings, status or best_step of a run.");
  run.status = status.get<std::string>();
  if (run.status == "running" && !may_be_running(folder)) run.status = kBrokenOff;
  for (const auto& [name, value] : settings.items()) run.settings.emplace_back(name, text_of(value));
  if (const nlohmann::json environment = member("environment"); environment.is_object()) {
    for (const auto& [name, value] : environment.items()) run.environment.emplace_back(name, text_of(value));
  }
  if (best.is_number_integer()) run.best_step = best.get<int64_t>();
  check_file(folder, "metrics.jsonl", "which mezzo train writes there");
  run.records = read_run_records(folder / "metrics.jsonl");
  TORCH_CHECK_VALUE(run.status != "finished" || run.records.end, (folder / "metrics.jsonl").string(),
                    ": lacks the end of a run that run.json calls finished; it was cut off, or is another run's.");
  return run;
}

namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::vector<ComparedValues> differing(std::span<const ComparedRun> runs, Pairs ComparedRun::* pairs) {
  std::map<std::string, std::vector<std::string>> by_name;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, value] : runs[i].*pairs) {
      auto& values = by_name[name];
      values.resize(runs.size());
      values[i] = value;
    }
  }
  std::vector<ComparedValues> rows;
  for (auto& [name, values] : by_name) {
    const bool differs =
        std::ranges::any_of(values, [&first = values.front()](const auto& value) { return value != first; });
    if (differs && std::ranges::find(kNotCompared, name) == std::end(kNotCompared)) {
      rows.push_back({name, std::move(values)});
    }
  }
  return rows;
}

}  // namespace

std::vector<ComparedValues> differing_settings(std::span<const ComparedRun> runs) {
  return differing(runs, &ComparedRun::settings);
}

std::vector<ComparedValues> differing_environments(std::span<const ComparedRun> runs) {
  return differing(runs, &ComparedRun::environment);
}

std::vector<ComparedValues> outcomes(std::span<const ComparedRun> runs) {
  std::vector<ComparedValues> rows;
  const auto add = [&](std::string name, const auto& value) {
    ComparedValues row{std::move(name), {}};
    for (const ComparedRun& run : runs) row.values.push_back(value(run));
    rows.push_back(std::move(row));
  };
  add("run", [](const ComparedRun& run) { return run.status; });
  std::map<std::string, std::vector<std::string>> metrics;
  for (size_t i = 0; i < runs.size(); ++i) {
    const EvalRecord* evaluation = runs[i].evaluation();
    if (evaluation == nullptr) continue;
    for (const auto& [name, value] : metrics_of(*evaluation)) {
      auto& values = metrics[name];
      values.resize(runs.size(), "–");
      values[i] = four_digits(value);
    }
  }
  for (auto& [name, values] : metrics) rows.push_back({name, std::move(values)});
  add("at step", [](const ComparedRun& run) {
    const EvalRecord* evaluation = run.evaluation();
    if (evaluation == nullptr) return std::string("–");
    const bool is_kept = evaluation->is_final || evaluation->step == run.best_step;
    return std::to_string(evaluation->step) + (is_kept ? "" : ", the latest");
  });
  add("steps", [](const ComparedRun& run) { return std::to_string(run.records.steps.size()); });
  add("skipped steps", [](const ComparedRun& run) {
    return std::to_string(std::ranges::count_if(run.records.steps, [](const auto& step) { return step.skipped; }));
  });
  const auto add_of_end = [&](const char* name, const auto& value) {
    add(name, [&](const ComparedRun& run) { return run.records.end ? value(*run.records.end) : std::string("–"); });
  };
  add_of_end("training time", [](const EndRecord& end) { return duration_in_words(60 * end.minutes); });
  add_of_end("texts/s", [](const EndRecord& end) { return four_digits(end.samples_per_second); });
  add_of_end("tokens/s", [](const EndRecord& end) { return four_digits(end.tokens_per_second); });
  add_of_end("peak memory, GB", [](const EndRecord& end) {
    return fmt::format("{:.2f}", 1e-9 * static_cast<double>(end.peak_memory_bytes));
  });
  return rows;
}

namespace {

/// Columns as wide as their contents.
std::string table(std::span<const ComparedRun> runs, const std::string& heading, std::vector<ComparedValues> rows) {
  ComparedValues head{heading, {}};
  for (const ComparedRun& run : runs) head.values.push_back(run.name);
  const bool is_empty = rows.empty();
  rows.insert(rows.begin(), std::move(head));
  std::vector<size_t> widths(runs.size() + 1, 0);
  for (auto& [name, values] : rows) {
    name = printable(name);
    widths.front() = std::max(widths.front(), display_width(name));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = printable(values[i]);
      widths[i + 1] = std::max(widths[i + 1], display_width(values[i]));
    }
  }
  std::string text;
  for (const auto& [name, values] : rows) {
    text += name + std::string(widths.front() - display_width(name), ' ');
    for (size_t i = 0; i < values.size(); ++i) {
      text += "  " + std::string(widths[i + 1] - display_width(values[i]), ' ') + values[i];
    }
    text += "\n";
  }
  return text + (is_empty ? "none\n\n" : "\n");
}

}  // namespace

std::string comparison_text(std::span<const ComparedRun> runs, const std::optional<TestedRuns>& tested) {
  std::string text = table(runs, "settings that differ", differing_settings(runs));
  if (auto environments = differing_environments(runs); !environments.empty()) {
    text += table(runs, "machines and programs that differ", std::move(environments));
  }
  if (tested) {
    text += table(runs, tested->heading(), tested->rows());
    for (size_t i = 0; i < tested->differences.size(); ++i) {
      const auto& [difference, p_value] = tested->differences[i];
      text += printable(fmt::format("{}, {} minus {}: {}, p = {:.3g}", tested->metrics.front().title, runs[i + 1].name,
                                    runs.front().name, to_string(difference), p_value)) +
              "\n";
    }
    text += fmt::format("(95 % interval of {}; p by a permutation test)\n\n",
                        counted(tested->resamples, "bootstrap sample"));
  }
  std::string of_outcomes = table(runs, "outcomes", outcomes(runs));
  of_outcomes.pop_back();  // the empty line
  for (const ComparedRun& run : runs) {
    if (run.status != kBrokenOff) continue;
    of_outcomes += printable(run.name) + " ended unexpectedly; the same command with --resume auto resumes it\n";
  }
  return text + of_outcomes;
}

std::vector<ComparedValues> TestedRuns::rows() const {
  std::vector<ComparedValues> rows;
  for (size_t metric = 0; metric < metrics.size(); ++metric) {
    ComparedValues row{metrics[metric].title, {}};
    for (const auto& of_model : intervals) row.values.push_back(to_string(of_model[metric]));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string TestedRuns::heading() const {
  return fmt::format("{} of {}, in {}", counted(num_texts, "text"), of, precision);
}

}  // namespace mezzo::text
