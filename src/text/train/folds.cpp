#include "mezzo/text/train/folds.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/records/run_records.h"
#include "mezzo/text/train/trainer.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/json_file.h"
#include "text/run/run_identity.h"
#include "text/setup/ranks.h"
#include "text/setup/run_plan.h"
#include "text/setup/run_setup.h"

namespace mezzo::text {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Whether the fold has been trained to its end, as it is to be trained now.
/// @throws c10::ValueError  where it was trained otherwise: nothing is to be said of folds that do not belong together.
bool has_finished(TrainConfig config, const Ranks& ranks) {
  const fs::path file = config.output / "run.json";
  if (!fs::exists(file)) {
    return false;
  }
  const Json json = read_json_object(file);
  if (!json.value("finished", false)) {
    return false;
  }
  const RunIdentity was = checkpoint_format::identity_from_json(json.at("identity"));
  if (const auto size = was.flags.find("batch-size"); !config.batch_size && size != was.flags.end()) {
    config.batch_size = std::stoll(size->second);  // as many as fitted the memory then
  }
  const RunSetup setup = set_up_run(config);
  const std::string difference = describe_difference(was, identity_of(config, setup, ranks));
  TORCH_CHECK_VALUE(difference.empty(), "--resume: ", config.output.string(), " holds another run: ", difference,
                    "; resume with the same settings and data, or start afresh in another --output");
  const auto texts = static_cast<int64_t>(setup.train.ids.size());
  return plan_run(config, texts, ranks).total_steps <= json.value("total_steps", int64_t{0});
}

FoldScores scores_of(const fs::path& output) {
  const auto evals = read_run_records(output / "metrics.jsonl").evals;
  TORCH_CHECK_VALUE(!evals.empty() && evals.back().is_final, (output / "metrics.jsonl").string(),
                    ": has no final evaluation, though the run has finished; train it anew with --overwrite");
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

FoldsResult train_folds(const TrainConfig& config,
                        const std::function<bool()>& stop_requested,
                        distributed::ProcessGroup* group) {
  config.validate();
  const Ranks ranks(group);
  FoldsResult result;
  for (int64_t fold = 1; fold <= config.folds; ++fold) {
    TrainConfig of_fold = config;
    of_fold.fold = fold;
    of_fold.output = config.output / fmt::format("fold-{}", fold);
    bool is_done = false;
    ranks.all_or_none([&] {
      is_done = ranks.is_main() && config.resume == "auto" && !config.overwrite && has_finished(of_fold, ranks);
    });
    if (!ranks.any(is_done)) {
      if (ranks.is_main() && !config.quiet) {
        std::fputs(fmt::format("fold {} of {}\n", fold, config.folds).c_str(), stderr);
      }
      const TrainResult trained = train(of_fold, stop_requested, group);
      result.saves_failed = result.saves_failed || trained.saves_failed;
      if (!trained.finished) {
        return result;
      }
    }
    ranks.all_or_none([&] {
      if (ranks.is_main()) result.folds.push_back(scores_of(of_fold.output));
    });
  }
  result.finished = true;
  ranks.all_or_none([&] {
    if (ranks.is_main()) {
      Json folds = Json::array();
      for (const FoldScores& scores : result.folds) folds.push_back(to_json(scores));
      const Json json = {
          {"folds", folds}, {"mean", to_json(result.mean())}, {"std", to_json(result.standard_deviation())}};
      write_file_atomically(config.output / "folds.json", json.dump(2) + "\n");
    }
  });
  return result;
}

}  // namespace mezzo::text
