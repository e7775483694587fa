#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mezzo::text {

/// A setting of `mezzo train` that trials differ in: one of `values`, or, where there are none, a number from `low` to
/// `high`.
struct SearchedSetting {
  std::string name;  ///< as the flag: "learning-rate"
  std::vector<std::string> values = {};
  double low = 0, high = 0;
  bool is_log = false;    ///< drawn evenly among logarithms; `low` is above 0
  bool is_whole = false;  ///< whole numbers only

  /// What `share`, from 0 to below 1, of all values stands for. Numbers have three digits, and six in a narrow
  /// range.
  std::string value_at(double share) const;
};

/// One set of settings, trained.
struct Trial {
  /// Waiting for its first or next part, told no more to train, trained to the end, or broken.
  enum class State { kWaiting, kDropped, kFinished, kFailed };
  using Settings = std::vector<std::pair<std::string, std::string>>;

  /// After a part of the training.
  struct Score {
    double share = 0;  ///< of all steps
    int64_t step = 0;
    double value = std::numeric_limits<double>::quiet_NaN();  ///< the metric of the best model so far, on dev
    double loss = std::numeric_limits<double>::quiet_NaN();   ///< of that model, on dev
    double seconds = 0;                                       ///< that this part took
  };

  int64_t number = 0;  ///< from 1
  Settings settings;   ///< in the order of the search
  State state = State::kWaiting;
  std::vector<Score> scores = {};  ///< by rung
  std::string message = {};        ///< why it failed
};

/// A search over settings: random search (Bergstra and Bengio 2012), of whose trials only the best go on after a part
/// of the training: successive halving (Jamieson and Talwalkar 2016, algorithm 1).
struct SearchOptions {
  using Command =
      std::function<std::vector<std::string>(const Trial& trial, const std::filesystem::path& folder, double share)>;

  std::filesystem::path output;
  std::vector<SearchedSetting> settings;  ///< at least one
  int64_t trials = 16;
  int64_t halving = 3;       ///< one of so many goes on; 1: all are trained to the end
  double least_share = 0.1;  ///< of all steps, that the first part has at least
  int64_t parallel = 1;      ///< processes side by side
  uint64_t seed = 0;
  int64_t keep = 1;  ///< of the best trials the models are kept
  /// Everything else that decides results: a search goes on only where it is the same.
  std::vector<std::pair<std::string, std::string>> recipe = {};
  std::vector<std::filesystem::path> files = {};  ///< whose contents belong to that
  /// The process that trains a trial in `folder` up to `share` of its steps, or goes on with it; run.json and
  /// metrics.jsonl tell what came of it.
  Command command;
  std::function<bool()> stop_requested;  ///< asked ten times a second, by one thread
};

struct SearchResult {
  bool finished = false;  ///< false: stopped on request, to go on with the same call
  std::string metric;     ///< as in metrics.jsonl
  bool greater_is_better = true;
  std::vector<Trial> trials;  ///< the best first
};

/// The shares of the training after which trials are compared, in order; the last is 1.
std::vector<double> search_rungs(const SearchOptions& options);

/// How many trials have part `rung` of the training, where none fails or ends early.
int64_t trials_of_rung(const SearchOptions& options, size_t rung);

/// "learning-rate 3e-05, batch-size 16".
std::string to_string(const Trial::Settings& settings);

/// The settings of the trials, all different; fewer than asked for where there are no more. A pure function of the
/// options.
std::vector<Trial> draw_trials(const SearchOptions& options);

/// Runs the trials (those that failed before, again). Writes into `output`: results.json (recipe, trials and scores, by
/// which the same call goes on), trials/N, a run each, logs/N.txt, the output of that run, and report.html.
/// Prints a line for each part that ends. Trials that go no further, and at the end all but the best, lose model and
/// checkpoints.
/// @throws c10::ValueError  where `output` holds something else, or a search with another recipe, which is named;
///   c10::Error  if no trial was trained to its end.
SearchResult search(const SearchOptions& options);

/// A page like that of `mezzo train`.
std::string render_search(const SearchOptions& options, const SearchResult& result);

}  // namespace mezzo::text
