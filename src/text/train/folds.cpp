#include "mezzo/text/train/folds.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/records/run_records.h"
#include "mezzo/text/terminal/standard_output.h"
#include "mezzo/text/train/trainer.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/json_file.h"
#include "text/run/recorded_run.h"
#include "text/run/run_folder.h"
#include "text/run/run_identity.h"
#include "text/setup/ranks.h"
#include "text/setup/run_files.h"
#include "text/setup/run_plan.h"
#include "text/setup/run_setup.h"
#include "text/train/batch_size.h"

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kSummary = "folds.json";

std::map<std::string, std::string> settings_of(const TrainConfig& config) {
  const auto settings = config.settings();
  return {settings.begin(), settings.end()};
}

TrainConfig config_of(const TrainConfig& config, int64_t fold) {
  TrainConfig of_fold = config;
  of_fold.fold = fold;
  of_fold.output = config.output / fmt::format("fold-{}", fold);
  return of_fold;
}

/// All folds may be trained before the first is.
void check_folders(const TrainConfig& config) {
  bool has_run = false;
  for (int64_t fold = 1; fold <= config.folds; ++fold) {
    const TrainConfig of_fold = config_of(config, fold);
    of_fold.validate();
    TORCH_CHECK_VALUE(!fs::exists(of_fold.output) || fs::is_directory(of_fold.output), "--output ",
                      of_fold.output.string(), ": is a file, not a folder");
    const bool may_hold_a_run = config.overwrite || config.resume == "auto";
    const bool is_run = fs::exists(of_fold.output / "run.json");
    has_run = has_run || is_run;
    for (const char* name : kRunFiles) {
      const bool is_there = fs::exists(of_fold.output / name);
      TORCH_CHECK_VALUE(!is_there || (is_run && may_hold_a_run), "--output ", of_fold.output.string(), ": holds ",
                        is_run
                            ? "a run already; pass another folder, --resume auto to go on with what has not finished, "
                              "or --overwrite"
                            : fmt::format("{}, and no run.json that says that a run of mezzo wrote it; pass another "
                                          "folder",
                                          name));
    }
  }
  const fs::path summary = config.output / kSummary;
  TORCH_CHECK_VALUE(!fs::exists(summary) || (fs::is_regular_file(summary) && has_run), summary.string(),
                    ": is not of a cross-validation of mezzo's, which would lie beside it; pass another --output");
}

/// What an earlier cross-validation came to says nothing of the one that begins.
void remove_summary(const TrainConfig& config) {
  std::error_code none;
  fs::remove(config.output / kSummary);
  for (const auto& entry : fs::directory_iterator(config.output, none)) {
    if (is_leftover_of(kSummary, entry.path())) fs::remove(entry.path());
  }
}

/// As the settings have several files.
std::string joined(const Json& settings, const char* name) {
  const Json value = settings.value(name, Json(""));
  return value.is_array() ? fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), " "))
                          : value.get<std::string>();
}

/// What the run.json of a fold that has come to its end tells of it.
struct FinishedFold {
  RunIdentity identity;
  std::string test;
  int64_t total_steps;
};

/// nullopt where the fold has not come to its end.
std::optional<FinishedFold> read_finished(const fs::path& run_json) {
  if (!fs::exists(run_json)) {
    return std::nullopt;
  }
  const Json json = read_json_object(run_json);
  try {
    if (!json.at("finished").get<bool>()) return std::nullopt;
    return FinishedFold{checkpoint_format::identity_from_json(json.at("identity")), joined(json.at("settings"), "test"),
                        json.at("total_steps").get<int64_t>()};
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, run_json.string(), ": is no run.json that mezzo train wrote: ", error.what());
  }
}

/// Whether the fold has been trained to its end, as it is to be trained now.
/// @throws c10::ValueError  where it was trained otherwise: nothing is to be said of folds that do not belong together.
bool has_finished(TrainConfig config, const Ranks& ranks) {
  const auto finished = read_finished(config.output / "run.json");
  if (!finished) {
    return false;
  }
  keep_chosen(config, finished->identity.flags);
  const RunSetup setup = set_up_run(config);
  std::string difference = describe_difference(finished->identity, identity_of(config, setup));
  const std::string test = settings_of(config).at("test");
  if (difference.empty() && test != finished->test) {
    difference = fmt::format("test was '{}', is now '{}'", finished->test, test);
  }
  TORCH_CHECK_VALUE(difference.empty(), "--resume: ", config.output.string(), " holds another run: ", difference,
                    "; resume with the same settings and data, or start afresh in another --output");
  const auto texts = static_cast<int64_t>(setup.train.ids.size());
  return plan_run(config, texts, ranks).total_steps <= finished->total_steps;
}

FoldScores scores_of(const fs::path& output, const std::string& split) {
  const auto evals = read_run_records(output / "metrics.jsonl").evals;
  TORCH_CHECK_VALUE(!evals.empty() && evals.back().is_final && evals.back().split == split,
                    (output / "metrics.jsonl").string(), ": has no final evaluation on ", split,
                    ", though the run has finished; evaluate all folds with the same --test");
  FoldScores scores;
  scores.values.emplace_back("loss", evals.back().loss);
  scores.values.insert(scores.values.end(), evals.back().metrics.begin(), evals.back().metrics.end());
  return scores;
}

Json to_json(const FoldScores& scores) {
  Json json = Json::object();
  for (const auto& [name, value] : scores.values) {
    json[name] = value;
  }
  return json;
}

}  // namespace

FoldScores FoldsResult::mean() const {
  FoldScores mean = folds.at(0);
  for (size_t i = 0; i < mean.values.size(); ++i) {
    double sum = 0;
    for (const FoldScores& fold : folds) sum += fold.values.at(i).second;
    mean.values[i].second = sum / static_cast<double>(folds.size());
  }
  return mean;
}

FoldScores FoldsResult::standard_deviation() const {
  const FoldScores center = mean();
  FoldScores deviation = center;
  for (size_t i = 0; i < deviation.values.size(); ++i) {
    double sum = 0;
    for (const FoldScores& fold : folds) sum += std::pow(fold.values.at(i).second - center.values[i].second, 2);
    deviation.values[i].second = std::sqrt(sum / std::max(1.0, static_cast<double>(folds.size()) - 1));
  }
  return deviation;
}

std::string FoldsResult::table() const {
  const auto width = [](const std::string& name) { return std::max<size_t>(8, name.size()); };
  std::string text = fmt::format("{:<6}", "fold");
  for (const auto& [name, value] : folds.at(0).values) text += fmt::format("  {:>{}}", name, width(name));
  const auto add = [&](const std::string& title, const FoldScores& scores) {
    text += fmt::format("\n{:<6}", title);
    for (const auto& [name, value] : scores.values) text += fmt::format("  {:>{}.4f}", value, width(name));
  };
  for (size_t i = 0; i < folds.size(); ++i) add(std::to_string(i + 1), folds[i]);
  add("mean", mean());
  add("std", standard_deviation());
  return text + "\n";
}

FoldsResult train_folds(TrainConfig config,
                        const std::function<bool()>& stop_requested,
                        distributed::ProcessGroup* group) {
  config.validate();
  const Ranks ranks(group);
  for (int64_t fold = 1; config.resume == "auto" && !config.overwrite && fold <= config.folds; ++fold) {
    TrainConfig of_fold = config_of(config, fold);
    keep_chosen(of_fold, recorded_flags(of_fold.output / "run.json"));
    config.shares = of_fold.shares;  // of all alike; each has a batch size of its own, where it was to choose one
  }
  if (config.shares == 0) {
    config.shares = config.restarted > 0 ? config.restarted : ranks.size();
  }
  ranks.all_or_none([&] {
    if (!ranks.is_main() || config.restarted > 0) return;
    check_folders(config);
    for (int64_t fold = 1; !config.metric.empty() && fold <= config.folds; ++fold) {
      check_data(config_of(config, fold));  // each dev part has to tell the metric
    }
  });
  const std::string split = config.test.empty() ? "dev" : "test";
  bool is_heard = true;  // whether anybody reads stdout
  FoldsResult result;
  for (int64_t fold = 1; fold <= config.folds; ++fold) {
    const TrainConfig of_fold = restarted(config_of(config, fold), ranks);
    bool is_done = false;
    ranks.all_or_none([&] {
      is_done = ranks.is_main() && of_fold.resume == "auto" && !of_fold.overwrite && has_finished(of_fold, ranks);
      if (ranks.is_main() && !is_done) remove_summary(config);
    });
    if (!ranks.any(is_done)) {
      if (ranks.is_main() && !config.quiet) {
        std::fputs(fmt::format("fold {} of {}\n", fold, config.folds).c_str(), stderr);
      }
      TrainResult trained{.finished = true, .evaluation = std::nullopt};
      try {
        trained = train(of_fold, stop_requested, group);
      } catch (const OutputClosed&) {  // once all is done
        is_heard = false;
      }
      result.saves_failed = result.saves_failed || trained.saves_failed;
      if (!trained.finished) {
        return result;
      }
    }
    ranks.all_or_none([&] {
      if (ranks.is_main()) result.folds.push_back(scores_of(of_fold.output, split));
    });
  }
  result.finished = true;
  ranks.all_or_none([&] {
    if (ranks.is_main()) {
      Json folds = Json::array();
      for (const FoldScores& scores : result.folds) folds.push_back(to_json(scores));
      const Json json = {{"split", split},
                         {"folds", folds},
                         {"mean", to_json(result.mean())},
                         {"std", to_json(result.standard_deviation())}};
      write_file_atomically(config.output / kSummary, json.dump(2) + "\n");
    }
  });
  if (!is_heard) {
    throw OutputClosed();
  }
  return result;
}

}  // namespace mezzo::text
