#include "mezzo/text/tune/search.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/tasks/metrics.h"
#include "mezzo/text/terminal/standard_output.h"
#include "text/io/content_hash.h"
#include "text/io/durable_files.h"
#include "text/io/json_file.h"
#include "text/run/run_lock.h"
#include "text/tune/trial_runs.h"
#include "text/tune/trial_store.h"
#include "text/words/printable.h"
#include "text/words/words.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using State = Trial::State;

constexpr int kNotAllSaved = 3;  // the exit status of a run that ended well, without all of its checkpoints

/// What decides which trials there are and how far each goes, beside what the caller says.
Trial::Settings recipe_of(const SearchOptions& options) {
  Trial::Settings recipe;
  for (const auto& [name, value] : options.recipe) {
    recipe.emplace_back("train " + name, value);
  }
  for (const fs::path& file : std::set(options.files.begin(), options.files.end())) {
    ContentHash hash;
    for_each_piece(file, [&](const void* data, size_t size) { hash.update(data, size); });
    recipe.emplace_back("contents of " + file.string(), hash.hex());
  }
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

/// Whoever reads that may go away; the trials go on.
void say(const std::string& line) {
  try {
    write_stdout(line + "\n");
    flush_stdout();
  } catch (const std::exception&) {  // the caller's next line says so
  }
}

class Search {
 public:
  Search(const SearchOptions& options, std::vector<Trial> drawn)
      : options_(options),
        rungs_(search_rungs(options)),
        lock_(prepare(options)),
        trials_(std::move(drawn)),
        store_(options.output / "search.db", recipe_of(options), trials_, !fs::is_empty(options.output / "trials")),
        runs_(options) {
    if (const auto metric = store_.metric()) {
      metric_ = *metric;
    }
    for (Trial& trial : trials_) {
      if (trial.state == State::kFailed) {
        trial.state = State::kWaiting;  // what it failed for may be mended
        trial.message.clear();
      }
    }
  }

  SearchResult run() {
    const auto parts = std::ranges::count_if(trials_, [](const auto& trial) { return !trial.scores.empty(); });
    const bool goes_on = std::ranges::any_of(trials_, [](const auto& one) { return one.state == State::kWaiting; });
    if (parts > 0 && goes_on) {
      say(fmt::format("goes on: {} of {} begun before", counted(parts, "trial"), trials_.size()));
    }
    for (size_t rung = 0; rung < rungs_.size(); ++rung) {
      if (!run_rung(rung)) {
        write_results(false);
        return result(false);
      }
      drop(rung);
    }
    const auto ranked = ranking();
    const auto failed = std::ranges::find(ranked, State::kFailed, &Trial::state);
    TORCH_CHECK(ranked.front().state == State::kFinished, "no trial was trained to its end; trial ",
                failed == ranked.end() ? 0 : failed->number, ": ", failed == ranked.end() ? "" : failed->message,
                "; the same command tries it again");
    for (const char* name : {"run.json", "model.safetensors"}) {
      const fs::path file = folder_of(options_, ranked.front()) / name;
      TORCH_CHECK(
          fs::exists(file), file.string(),
          ": the best trial's file is not there any more. Restore it, or pass another --output to search again");
    }
    if (!goes_on) {
      say("already finished: no trial is left to train");
    }
    for (size_t place = 0; const Trial& trial : ranked) {
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
                      options.output.string(),
                      fs::is_directory(options.output, none) ? ": holds no search, but other files" : ": is no folder",
                      "; pass another --output.");
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
        Trial& trial = *waiting.front();
        waiting.pop_front();
        if (has_finished(trial)) {  // just before an earlier search was killed
          score(trial, rung, /*seconds=*/0);
        } else {
          runs_.start(trial, rungs_[rung]);
        }
      }
      const auto outcome = runs_.wait();
      is_stopped = is_stopped || options_.stop_requested();
      if (!outcome) {
        continue;
      }
      // A trial that is killed after its last write has finished.
      if (outcome->end.is_success() || outcome->end.status() == kNotAllSaved || has_finished(*outcome->trial)) {
        score(*outcome->trial, rung, outcome->seconds);
      } else if (!is_stopped) {
        fail(*outcome->trial, reason_of(*outcome->trial, outcome->end), rung);
      }
    }
    const bool all_failed = std::ranges::all_of(trials_, [](const auto& one) { return one.state == State::kFailed; });
    TORCH_CHECK(!all_failed, "no trial could be trained; the first: ", trials_.front().message);
    return !is_stopped;
  }

  /// What run.json says of a trial.
  struct Told {
    bool finished = false;
    int64_t steps = 0, total_steps = 0;
    SearchMetric metric = {};
    double value = 0, loss = 0;  // of the best model
  };
  Told told_of(const Trial& trial) const {
    const auto file = folder_of(options_, trial) / "run.json";
    const auto run = read_json_object(file);
    try {
      Told told{
          run.at("finished"), run.at("steps"), run.at("total_steps"), {run.at("metric"), run.at("greater_is_better")}};
      const auto number = [](const Json& json) { return json.is_null() ? std::nan("") : json.get<double>(); };
      told.value = number(run.at("best_" + told.metric.name));
      told.loss = number(run.at("best_loss"));
      return told;
    } catch (const nlohmann::json::exception&) {
      TORCH_CHECK(false, file.string(), ": does not tell steps, metric and the best of a run.");
    }
  }

  bool has_finished(const Trial& trial) const {
    std::error_code none;
    const auto folder = folder_of(options_, trial);
    try {
      return fs::exists(folder / "run.json", none) && !is_at_work(folder) && told_of(trial).finished;
    } catch (const c10::Error&) {  // mezzo train says what is wrong with it
      return false;
    }
  }

  /// What a process that ended as it should has made of the trial.
  void score(Trial& trial, size_t rung, double seconds) {
    Told told;
    try {
      told = told_of(trial);
      TORCH_CHECK(
          told.finished || static_cast<double>(told.steps) >= rungs_[rung] * static_cast<double>(told.total_steps),
          (folder_of(options_, trial) / "run.json").string(), ": was not written at the end.");
    } catch (const c10::Error& error) {
      fail(trial, error.what_without_backtrace(), rung);
      return;
    }
    if (metric_.name.empty()) {
      metric_ = told.metric;
      store_.set_metric(metric_);
    }
    trial.scores.push_back(
        {.share = rungs_[rung], .step = told.steps, .value = told.value, .loss = told.loss, .seconds = seconds});
    trial.state = told.finished ? State::kFinished : State::kWaiting;
    note(trial, rung);
  }

  /// Its weights stay: the same command tries it again.
  void fail(Trial& trial, const std::string& why, size_t rung) {
    trial.state = State::kFailed;
    trial.message = why;
    note(trial, rung);
  }

  /// What the process said at its end, if that is an error of its own.
  std::string reason_of(const Trial& trial, const ProcessEnd& end) const {
    const auto line = last_line(log_of(options_, trial));
    return !end.by_signal && line.starts_with("mezzo") ? line : end.to_string();
  }

  void note(const Trial& trial, size_t rung) {
    store_.update(trial);
    write_results(false);
    tell(trial, rung);
  }

  void tell(const Trial& trial, size_t rung) const {
    const auto best = ranking().front();
    if (trial.state == State::kFailed) {
      say(fmt::format("trial {}: failed: {} ({})", trial.number, trial.message, to_string(trial.settings)));
    } else {
      say(fmt::format("trial {}: {} {} after {:.0f} % of its steps, {} ({}); best so far trial {}: {}", trial.number,
                      metric_.name, fixed(trial.scores.back().value, 4), 100 * rungs_[rung],
                      duration_in_words(trial.scores.back().seconds), to_string(trial.settings), best.number,
                      fixed(best.scores.empty() ? std::nan("") : best.scores.back().value, 4)));
    }
  }

  bool is_better_score(const Trial::Score& score, const Trial::Score& other) const {
    return is_better({score.value, score.loss}, {other.value, other.loss}, metric_.greater_is_better);
  }

  /// Those that came furthest first, the best first among them, those that failed last; of equals the earlier.
  std::vector<Trial> ranking() const {
    auto ranked = trials_;
    const auto group = [&](const Trial& trial) {
      const auto parts = trial.state == State::kFinished ? std::ssize(rungs_) : std::ssize(trial.scores);
      return std::pair(trial.state == State::kFailed, -parts);
    };
    std::ranges::stable_sort(ranked, [&](const Trial& one, const Trial& other) {
      if (group(one) != group(other)) return group(one) < group(other);
      return !one.scores.empty() && !other.scores.empty() && is_better_score(one.scores.back(), other.scores.back());
    });
    return ranked;
  }

  /// Those that are not among the best go no further.
  void drop(size_t rung) {
    if (rung + 1 == rungs_.size()) {
      return;
    }
    int64_t places = trials_of_rung(options_, rung + 1);
    std::vector<Trial*> ranked;  // by this part alone: how far one has come since says nothing of it
    for (Trial& trial : trials_) {
      if (trial.state != State::kFailed && trial.scores.size() > rung) {
        ranked.push_back(&trial);
      }
    }
    std::ranges::stable_sort(ranked, [&](const Trial* one, const Trial* other) {
      return is_better_score(one->scores[rung], other->scores[rung]);
    });
    for (Trial* trial : ranked) {
      if (places-- <= 0 && trial->state == State::kWaiting) {
        trial->state = State::kDropped;
        store_.update(*trial);
      }
    }
    for (const Trial& trial : trials_) {
      if (trial.state == State::kDropped) {
        remove_weights(folder_of(options_, trial));
      }
    }
  }

  SearchResult result(bool finished) const {
    return {.finished = finished,
            .metric = metric_.name,
            .greater_is_better = metric_.greater_is_better,
            .trials = ranking()};
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
                          {metric_.name, score.value},
                          {"loss", score.loss},
                          {"seconds", score.seconds}});
      }
      Json one = {{"trial", trial.number},
                  {"state", state_name(trial.state)},
                  {"settings", std::move(settings)},
                  {"scores", std::move(scores)}};
      if (!trial.message.empty()) {
        one["error"] = trial.message;
      }
      trials.push_back(std::move(one));
    }
    const Json json = {{"finished", finished}, {"metric", metric_.name}, {"trials", std::move(trials)}};
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
  SearchMetric metric_;
};

}  // namespace

SearchResult search(const SearchOptions& options) {
  TORCH_CHECK_VALUE(!options.settings.empty(), "search: there is no setting to search");
  TORCH_CHECK_VALUE(options.trials > 0 && options.parallel > 0 && options.keep > 0,
                    "search: trials, parallel and keep must be at least 1");
  auto trials = draw_trials(options);
  SearchOptions as_drawn = options;
  as_drawn.trials = std::ssize(trials);  // by which the parts are planned
  if (as_drawn.trials < options.trials) {
    say(fmt::format("{} trials: there are no more that differ", as_drawn.trials));
  }
  return Search(as_drawn, std::move(trials)).run();
}

}  // namespace mezzo::text
