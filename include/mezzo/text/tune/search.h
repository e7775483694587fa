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

/// A setting of `mezzo train` that differs between trials: one of `values` or, if they are empty, a
/// number from `low` to `high`.
struct SearchedSetting {
  std::string name;                      ///< of the flag: "learning-rate"
  std::vector<std::string> values = {};  ///< values to choose from
  double low = 0;                        ///< smallest number
  double high = 0;                       ///< largest number
  bool is_log = false;                   ///< uniform in the logarithm; `low` is above 0
  bool is_whole = false;                 ///< whole numbers only

  /// The value at `share`, in [0, 1), of the range. Numbers have three digits, or six in a narrow
  /// range.
  std::string value_at(double share) const;
};

/// One trained combination of settings.
struct Trial {
  /// Waiting for its first or next part; excluded from further training; trained to the end;
  /// failed.
  enum class State { kWaiting, kDropped, kFinished, kFailed };
  /// Values by the names of flags.
  using Settings = std::vector<std::pair<std::string, std::string>>;

  /// The score after a part of the training.
  struct Score {
    double share = 0;                                         ///< of all steps
    int64_t step = 0;                                         ///< last step of the part
    double value = std::numeric_limits<double>::quiet_NaN();  ///< the metric of the best model so far, on dev
    double loss = std::numeric_limits<double>::quiet_NaN();   ///< of that model, on dev
    double seconds = 0;                                       ///< duration of this part
  };

  int64_t number = 0;              ///< from 1
  Settings settings;               ///< in the order of the search
  State state = State::kWaiting;   ///< see State
  std::vector<Score> scores = {};  ///< by rung
  std::string message = {};        ///< cause of a failure
};

/// A random search over settings (Bergstra and Bengio 2012) with successive halving (Jamieson and
/// Talwalkar 2016, algorithm 1): after each part of the training only the best trials continue.
struct SearchOptions {
  /// Returns the command line of the process that trains a trial.
  using Command =
      std::function<std::vector<std::string>(const Trial& trial, const std::filesystem::path& folder, double share)>;

  std::filesystem::path output;           ///< folder for the results
  std::vector<SearchedSetting> settings;  ///< at least one
  int64_t trials = 16;                    ///< number of trials
  int64_t halving = 3;                    ///< reduction factor; 1: all trials are trained to the end
  double least_share = 0.1;               ///< smallest share of all steps for the first part
  int64_t parallel = 1;                   ///< number of processes at a time
  uint64_t seed = 0;                      ///< of the drawn settings
  int64_t keep = 1;                       ///< number of best trials whose models are kept
  /// All other settings that affect results: a search can only be resumed with equal values.
  std::vector<std::pair<std::string, std::string>> recipe = {};
  std::vector<std::filesystem::path> files = {};  ///< files whose contents belong to the recipe
  /// The process that trains a trial in `folder` up to `share` of its steps, or resumes it. Its
  /// results are in run.json and metrics.jsonl.
  Command command;
  std::function<bool()> stop_requested;  ///< called ten times a second, by one thread
};

/// The result of a search.
struct SearchResult {
  bool finished = false;          ///< false: stopped on request; the same call resumes it
  std::string metric;             ///< as in metrics.jsonl
  bool greater_is_better = true;  ///< false: lower is better
  std::vector<Trial> trials;      ///< the best first
};

/// The shares of the training after which trials are compared, ascending; the last is 1.
std::vector<double> search_rungs(const SearchOptions& options);

/// The number of trials in part `rung` of the training, if none fails or ends early.
int64_t trials_of_rung(const SearchOptions& options, size_t rung);

/// Settings as text: "learning-rate 3e-05, batch-size 16".
std::string to_string(const Trial::Settings& settings);

/// The settings of the trials, all different. Fewer than requested if the combinations run out. A
/// pure function of the options.
std::vector<Trial> draw_trials(const SearchOptions& options);

/// Runs the trials; failed trials run again. Prints a line for each finished part. Writes into
/// `output`:
/// * `results.json`: recipe, trials and scores, from which the same call resumes.
/// * `trials/N`: one run each, and `logs/N.txt`, its output.
/// * `report.html`.
///
/// Models and checkpoints of excluded trials are deleted, at the end of all trials except the best.
/// @throws c10::ValueError  if `output` holds other files, or a search with another recipe, which
///     is named
/// @throws c10::Error  if no trial was trained to its end
SearchResult search(const SearchOptions& options);

/// A page in the style of `mezzo train`.
std::string render_search(const SearchOptions& options, const SearchResult& result);

}  // namespace mezzo::text
