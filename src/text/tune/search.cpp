#include "mezzo/text/tune/search.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/safetensors.h"
#include "mezzo/text/io/standard_output.h"
#include "mezzo/text/tasks/metrics.h"
#include "text/io/content_hash.h"
#include "text/io/durable_files.h"
#include "text/io/printable.h"
#include "text/io/words.h"
#include "text/train/run_folder.h"
#include "text/train/run_lock.h"
#include "text/tune/results_file.h"
#include "text/tune/trial_runs.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using State = Trial::State;

constexpr const char* kResults = "results.json";
constexpr int kNotAllSaved = 3;  // the exit status of a run that ended well, without all of its checkpoints

/// Values that decide on the trials and their lengths, besides the caller's.
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

/// The reader of the output may go away; the trials go on.
void say(const std::string& line) {
  try {
    write_stdout(line + "\n");
    flush_stdout();
  } catch (const std::exception&) {  // the caller's next line says so
  }
}

class Search {
 public:
  Search(const SearchOptions& options, const std::vector<Trial>& drawn)
      : options_(options), recipe_(recipe_of(options)), rungs_(search_rungs(options)), lock_(prepare(options)) {
    if (fs::exists(results_file())) {
      auto recorded = read_results(results_file(), recipe_, drawn);
      metric_ = {recorded.metric, recorded.greater_is_better};
      trials_ = std::move(recorded.trials);
    } else {
      trials_ = drawn;
      record(false);
    }
    make_folders(options.output / "trials");
    make_folders(options.output / "logs");
    for (Trial& trial : trials_) {
      if (trial.state == State::kFailed) {
        trial.state = State::kWaiting;  // the cause may be mended
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
        record(false);
        return result(false);
      }
      drop(rung);
    }
    const auto ranked = ranking();
    const auto failed = std::ranges::find(ranked, State::kFailed, &Trial::state);
    TORCH_CHECK(ranked.front().state == State::kFinished, "no trial was trained to its end; trial ",
                failed == ranked.end() ? 0 : failed->number, ": ", failed == ranked.end() ? "" : failed->message,
                "; the same command tries it again");
    for (const char* name : {"run.json", kWeightsFile}) {
      const fs::path file = folder_of(options_, ranked.front()) / name;
      TORCH_CHECK(fs::exists(file), file.string(),
                  ": the best trial's file is missing. Restore it, or pass another --output to search again");
    }
    if (!goes_on) {
      say("already finished: no trial is left to train");
    }
    for (size_t place = 0; const Trial& trial : ranked) {
      if (place++ >= static_cast<size_t>(options_.keep)) {
        remove_weights(folder_of(options_, trial));
      }
    }
    record(true);
    return result(true);
  }

 private:
  fs::path results_file() const { return options_.output / kResults; }

  /// Makes the folder if it is missing; refuses one that holds something else.
  static fs::path prepare(const SearchOptions& options) {
    const fs::path& folder = options.output;
    TORCH_CHECK_VALUE(!fs::exists(folder) || fs::is_directory(folder), folder.string(),
                      ": is not a folder; pass another --output.");
    make_folders(folder);
    const auto is_of_search = [](const fs::path& file) {  // also of one that was killed at once
      return file.filename() == RunLock::kFile || is_leftover_of(kResults, file);
    };
    TORCH_CHECK_VALUE(
        fs::exists(folder / kResults) || std::ranges::all_of(fs::directory_iterator(folder), is_of_search),
        folder.string(), ": holds no search, but other files; pass another --output.");
    return folder;
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

  bool has_finished(const Trial& trial) const {
    if (is_at_work(folder_of(options_, trial))) return false;
    const auto run = read_present_run(folder_of(options_, trial));
    return run && run->finished;
  }

  /// Takes the score of a process that ended well.
  void score(Trial& trial, size_t rung, double seconds) {
    const auto folder = folder_of(options_, trial);
    const auto present = read_present_run(folder);
    const auto run = present.value_or(PresentRun());
    const bool is_whole =
        run.finished || static_cast<double>(run.steps) >= rungs_[rung] * static_cast<double>(run.total_steps);
    if (run.metric.empty() || !is_whole) {
      fail(trial, (folder / "run.json").string() + ": was not written at the end of the run.", rung);
      return;
    }
    metric_ = {run.metric, run.greater_is_better};
    trial.scores.push_back(
        {.share = rungs_[rung], .step = run.steps, .value = run.best, .loss = run.best_loss, .seconds = seconds});
    trial.state = run.finished ? State::kFinished : State::kWaiting;
    note(trial, rung);
  }

  /// Its weights stay: the same command tries it again.
  void fail(Trial& trial, const std::string& why, size_t rung) {
    trial.state = State::kFailed;
    trial.message = why;
    note(trial, rung);
  }

  /// The last line of the process's log, if it is an error of mezzo; else how the process ended.
  std::string reason_of(const Trial& trial, const ProcessEnd& end) const {
    const auto line = last_line(log_of(options_, trial));
    return !end.by_signal && line.starts_with("mezzo") ? line : end.to_string();
  }

  void note(const Trial& trial, size_t rung) {
    record(false);
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

  /// Trials by the parts that they finished, most first, and then the best first; failed ones last. Of equals the
  /// earlier.
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

  /// Trials that are not among the best go no further.
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
      }
    }
    record(false);
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

  /// Recorded results are kept, whatever happens next.
  void record(bool finished) const {
    const auto found = result(finished);
    try {
      write_results(results_file(), recipe_, found);
      write_file_atomically(options_.output / "report.html", render_search(options_, found));
    } catch (const c10::ValueError& error) {  // says nothing of the options
      TORCH_CHECK(false, error.what_without_backtrace());
    }
  }

  struct Metric {
    std::string name;
    bool greater_is_better = true;
  };

  const SearchOptions& options_;
  const Trial::Settings recipe_;
  const std::vector<double> rungs_;
  const RunLock lock_;
  std::vector<Trial> trials_;
  TrialRuns runs_{options_};
  Metric metric_;  // the name is empty until a trial has a score
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
    say(fmt::format("{} trials: no other combinations exist", as_drawn.trials));
  }
  return Search(as_drawn, trials).run();
}

}  // namespace mezzo::text
