#include "mezzo/text/train/folds.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/report/run_records.h"
#include "mezzo/text/train/trainer.h"
#include "text/io/json.h"
#include "text/io/printable.h"
#include "text/io/read_file.h"
#include "text/train/batch_size.h"
#include "text/train/finished_run.h"
#include "text/train/ranks.h"
#include "text/train/resuming.h"
#include "text/train/run_folder.h"
#include "text/train/run_setup.h"

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kSummary = "folds.json";

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
    const bool is_run = has_run_json(of_fold.output);
    has_run = has_run || is_run;
    TORCH_CHECK_VALUE(!is_run || read_present_run(of_fold.output), (of_fold.output / "run.json").string(),
                      ": is not a run.json of mezzo train; restore it, or pass another --output");
    const std::string file = find_run_file(of_fold.output);
    TORCH_CHECK_VALUE(
        file.empty() || (is_run && may_hold_a_run), "--output ", of_fold.output.string(), ": holds ",
        is_run ? "a run already; pass another folder, --resume auto to continue unfinished folds, or --overwrite"
               : fmt::format("{}, but no run.json of a run of mezzo; pass another folder", file));
  }
  const fs::path summary = config.output / kSummary;
  TORCH_CHECK_VALUE(!fs::exists(summary) || (fs::is_regular_file(summary) && has_run), summary.string(),
                    ": does not belong to a cross-validation of mezzo; pass another --output");
}

/// Results of an earlier cross-validation say nothing of the one that begins.
void remove_summary(const TrainConfig& config) {
  std::error_code none;
  fs::remove(config.output / kSummary);
  for (const auto& entry : fs::directory_iterator(config.output, none)) {
    if (is_leftover_of(kSummary, entry.path())) fs::remove(entry.path());
  }
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
    for (const auto& [name, value] : scores.values) text += fmt::format("  {:>{}}", fixed(value, 4), width(name));
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
    config.shares = of_fold.shares;  // the same for all folds; the batch size may differ by fold, if each chose it
  }
  if (config.shares == 0) {
    config.shares = config.restarted > 0 ? config.restarted : ranks.size();
  }
  ranks.all_or_none([&] {
    if (!ranks.is_main() || config.restarted > 0) return;
    check_folders(config);
    for (int64_t fold = 1; !config.metric.empty() && fold <= config.folds; ++fold) {
      data_warnings(config_of(config, fold));  // each dev part has to tell the metric
    }
  });
  const std::string split = config.test.empty() ? "dev" : "test";
  bool is_heard = true;  // whether anybody reads stdout
  bool has_trained = false;
  FoldsResult result;
  for (int64_t fold = 1; fold <= config.folds; ++fold) {
    const TrainConfig of_fold = restarted(config_of(config, fold), ranks);
    if (!steps_of_finished_run(of_fold, ranks)) {
      has_trained = true;
      ranks.all_or_none([&] {
        if (ranks.is_main()) remove_summary(config);
      });
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
  if (!has_trained && ranks.is_main() && !config.quiet) {
    std::fputs(fmt::format("already finished: all {} folds are in {}\n", config.folds, config.output.string()).c_str(),
               stderr);
  }
  ranks.all_or_none([&] {
    if (ranks.is_main()) {
      Json folds = Json::array();
      for (const FoldScores& scores : result.folds) folds.push_back(to_json(scores));
      const Json json = {{"split", split},
                         {"folds", folds},
                         {"mean", to_json(result.mean())},
                         {"std", to_json(result.standard_deviation())}};
      const std::string text = json.dump(2) + "\n";
      const fs::path summary = config.output / kSummary;
      if (has_trained || !fs::exists(summary) || read_file(summary) != text) {
        write_file_atomically(summary, text);
      }
    }
  });
  if (!is_heard) {
    throw OutputClosed();
  }
  return result;
}

}  // namespace mezzo::text
