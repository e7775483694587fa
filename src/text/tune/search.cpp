#include "mezzo/text/tune/search.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/terminal/standard_output.h"
#include "text/io/durable_files.h"
#include "text/io/json_file.h"
#include "text/run/run_lock.h"
#include "text/tune/trial_runs.h"
#include "text/tune/trial_store.h"
#include "text/words/words.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using State = Trial::State;

/// What decides which trials there are and how far each goes, beside what the caller says.
Trial::Settings recipe_of(const SearchOptions& options) {
  auto recipe = options.recipe;
  for (const SearchedSetting& setting : options.settings) {
    recipe.emplace_back("search " + setting.name,
                        setting.values.empty()
                            ? fmt::format("{} to {}{}{}", setting.low, setting.high, setting.is_log ? ", log" : "",
                                          setting.is_whole ? ", whole" : "")
                            : fmt::format("{}", fmt::join(setting.values, ", ")));
  }
  recipe.emplace_back("trials", std::to_string(options.trials));
  recipe.emplace_back("halving", std::to_string(options.halving));
  recipe.emplace_back("least_share", fmt::format("{}", options.least_share));
  recipe.emplace_back("seed", std::to_string(options.seed));
  return recipe;
}

std::string settings_text(const Trial& trial) {
  std::string text;
  for (const auto& [name, value] : trial.settings) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  }
  return text;
}

class Search {
 public:
  explicit Search(const SearchOptions& options)
      : options_(options),
        rungs_(search_rungs(options)),
        lock_(prepare(options)),
        trials_(draw_trials(options)),
        store_(options.output / "search.db", recipe_of(options), trials_),
        runs_(options) {
    for (const Trial& trial : trials_) {
      read_metric(trial);
    }
  }

  SearchResult run() {
    if (std::ssize(trials_) < options_.trials) {
      say(fmt::format("there are {} different trials, no more", trials_.size()));
    }
    if (const auto parts = std::ranges::count_if(trials_, [](const auto& trial) { return !trial.scores.empty(); })) {
      say(fmt::format("goes on: {} of {} begun before", counted(parts, "trial"), trials_.size()));
    }
    for (size_t rung = 0; rung < rungs_.size(); ++rung) {
      if (!run_rung(rung)) {
        write_results(false);
        return result(false);
      }
      drop(rung);
    }
    for (size_t place = 0; const Trial& trial : ranking()) {
      if (place++ >= static_cast<size_t>(options_.keep)) {
        remove_weights(folder_of(options_, trial));
      }
    }
    write_results(true);
    return result(true);
  }

 private:
  /// Makes the folder where it is missing; refuses one that holds something else.
  static fs::path prepare(const SearchOptions& options) {
    std::error_code none;
    TORCH_CHECK_VALUE(fs::exists(options.output / "search.db", none) || !fs::exists(options.output, none) ||
                          (fs::is_directory(options.output, none) && fs::is_empty(options.output, none)),
                      options.output.string(), ": holds no search, but other files; pass another --output.");
    make_folders(options.output / "trials");
    make_folders(options.output / "logs");
    return options.output;
  }

  /// Returns false when it was stopped.
  bool run_rung(size_t rung) {
    std::deque<Trial*> waiting;
    for (Trial& trial : trials_) {
      if (trial.state == State::kWaiting && trial.scores.size() <= rung) {
        waiting.push_back(&trial);
      }
    }
    bool is_stopped = options_.stop_requested();
    while (runs_.count() > 0 || (!is_stopped && !waiting.empty())) {
      while (!is_stopped && !waiting.empty() && runs_.count() < options_.parallel) {
        runs_.start(*waiting.front(), rungs_[rung]);
        waiting.pop_front();
      }
      const auto outcome = runs_.wait();
      is_stopped = is_stopped || options_.stop_requested();
      if (outcome && !(is_stopped && !outcome->end.is_success())) {
        take(*outcome, rung);
        write_results(false);
      }
    }
    const bool all_failed = std::ranges::all_of(trials_, [](const auto& one) { return one.state == State::kFailed; });
    TORCH_CHECK(!all_failed, "no trial could be trained; the first: ", trials_.front().message);
    return !is_stopped;
  }

  void take(const TrialRuns::Outcome& outcome, size_t rung) {
    Trial& trial = *outcome.trial;
    const auto folder = folder_of(options_, trial);
    constexpr int kNotAllSaved = 3;
    if (!outcome.end.is_success() && outcome.end.status() != kNotAllSaved) {
      trial.state = State::kFailed;
      const auto why = last_line(log_of(options_, trial));
      trial.message = why.empty() ? outcome.end.to_string() : why;
      remove_weights(folder);
    } else {
      const auto run = read_json_object(folder / "run.json");
      read_metric(trial);
      const auto value = run.find("best_" + metric_);
      trial.scores.push_back({.share = rungs_[rung],
                              .step = run.at("steps"),
                              .value = value == run.end() || value->is_null() ? std::nan("") : value->get<double>(),
                              .seconds = outcome.seconds});
      trial.state = run.at("finished").get<bool>() ? State::kFinished : State::kWaiting;
    }
    store_.update(trial);
    tell(trial, rung);
  }

  void read_metric(const Trial& trial) {
    std::error_code none;
    const auto file = folder_of(options_, trial) / "run.json";
    if (metric_.empty() && fs::exists(file, none)) {
      const auto run = read_json_object(file);
      metric_ = run.at("metric");
      greater_is_better_ = run.at("greater_is_better");
    }
  }

  void tell(const Trial& trial, size_t rung) const {
    const auto best = ranking().front();
    if (trial.state == State::kFailed) {
      say(fmt::format("trial {}: failed: {} ({})", trial.number, trial.message, settings_text(trial)));
    } else {
      say(fmt::format("trial {}: {} {:.4f} after {:.0f} % of its steps, {} ({}); best so far trial {}: {:.4f}",
                      trial.number, metric_, trial.scores.back().value, 100 * rungs_[rung],
                      duration_in_words(trial.scores.back().seconds), settings_text(trial), best.number,
                      best.scores.empty() ? std::nan("") : best.scores.back().value));
    }
  }

  static void say(const std::string& line) {
    write_stdout(line + "\n");
    flush_stdout();
  }

  /// Those that came furthest first, the best first among them, those that failed last; of equals the earlier.
  std::vector<Trial> ranking() const {
    auto ranked = trials_;
    const auto key = [&](const Trial& trial) {
      const double value = trial.scores.empty() ? std::nan("") : trial.scores.back().value;
      const double worst = std::numeric_limits<double>::infinity();
      const auto parts = trial.state == State::kFinished ? std::ssize(rungs_) : std::ssize(trial.scores);
      return std::tuple(trial.state == State::kFailed, -parts,
                        std::isnan(value) ? worst : (greater_is_better_ ? -value : value), trial.number);
    };
    std::ranges::sort(ranked, {}, key);
    return ranked;
  }

  /// Those that are not among the best go no further.
  void drop(size_t rung) {
    if (rung + 1 == rungs_.size()) {
      return;
    }
    int64_t places = (std::ssize(trials_) + options_.halving - 1) / options_.halving;
    for (size_t i = 0; i < rung; ++i) {
      places = (places + options_.halving - 1) / options_.halving;
    }
    for (const Trial& ranked : ranking()) {
      Trial& trial = trials_[static_cast<size_t>(ranked.number) - 1];
      if (trial.state == State::kFailed || trial.scores.size() <= rung) {
        continue;
      }
      if (places-- > 0 || trial.state != State::kWaiting) {
        continue;
      }
      trial.state = State::kDropped;
      store_.update(trial);
    }
    for (const Trial& trial : trials_) {
      if (trial.state == State::kDropped) {
        remove_weights(folder_of(options_, trial));
      }
    }
  }

  SearchResult result(bool finished) const {
    return {.finished = finished, .metric = metric_, .greater_is_better = greater_is_better_, .trials = ranking()};
  }

  void write_results(bool finished) const {
    const auto found = result(finished);
    Json trials = Json::array();
    for (const Trial& trial : found.trials) {
      Json settings = Json::object(), scores = Json::array();
      for (const auto& [name, value] : trial.settings) {
        settings[name] = value;
      }
      for (const auto& score : trial.scores) {
        scores.push_back({{"share", score.share},
                          {"step", score.step},
                          {metric_, std::isnan(score.value) ? Json() : Json(score.value)},
                          {"seconds", score.seconds}});
      }
      constexpr const char* kStates[] = {"waiting", "dropped", "finished", "failed"};
      Json one = {{"trial", trial.number},
                  {"state", kStates[static_cast<size_t>(trial.state)]},
                  {"settings", std::move(settings)},
                  {"scores", std::move(scores)}};
      if (!trial.message.empty()) {
        one["error"] = trial.message;
      }
      trials.push_back(std::move(one));
    }
    const Json json = {{"finished", finished}, {"metric", metric_}, {"trials", std::move(trials)}};
    write_file_atomically(options_.output / "results.json",
                          json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    write_file_atomically(options_.output / "report.html", render_search(options_, found));
  }

  const SearchOptions& options_;
  const std::vector<double> rungs_;
  const RunLock lock_;
  std::vector<Trial> trials_;
  TrialStore store_;
  TrialRuns runs_;
  std::string metric_;
  bool greater_is_better_ = true;
};

}  // namespace

SearchResult search(const SearchOptions& options) {
  TORCH_CHECK_VALUE(!options.settings.empty(), "search: there is no setting to search");
  return Search(options).run();
}

}  // namespace mezzo::text
