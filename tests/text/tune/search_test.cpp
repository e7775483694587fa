#include "mezzo/text/tune/search.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "text/scratch_folder.h"
#include "text/tune/results_file.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using State = Trial::State;

class SearchTest : public testing::Test {
 protected:
  /// Trials that a shell trains: each scores what its setting says, plus its share.
  SearchOptions options() const {
    SearchOptions options;
    options.output = folder_ / "search";
    options.settings = {{.name = "worth", .low = 0, .high = 1'000'000, .is_whole = true}};
    options.trials = 9;
    options.command = [](const Trial& trial, const fs::path& folder, double share) {
      const std::string& worth = trial.settings.front().second;
      const bool is_done = share == 1;
      return std::vector<std::string>{
          "/bin/sh", "-c",
          fmt::format("echo trained to {0}; mkdir -p {1}/checkpoints; echo weights > {1}/model.safetensors; "
                      "echo '{{\"environment\": {{\"mezzo\": \"1\"}}, \"metric\": \"accuracy\", \"greater_is_better\": "
                      "true, \"steps\": {2}, \"total_steps\": 90, "
                      "\"best_accuracy\": {3}, \"best_loss\": 0.5, \"finished\": {4}}}' > {1}/run.json",
                      share, folder.string(), std::ceil(share * 90), std::stod(worth) / 1e6, is_done)};
    };
    options.stop_requested = [] { return false; };
    return options;
  }

  fs::path trial_file(const Trial& trial, const char* name) const {
    return folder_ / "search" / "trials" / std::to_string(trial.number) / name;
  }

  const ScratchFolder folder_;
};

int64_t worth_of(const Trial& trial) { return std::stoll(trial.settings.front().second); }

TEST_F(SearchTest, DrawsDifferentTrialsWithinTheirRanges) {
  auto of = options();
  of.trials = 200;
  of.settings = {{.name = "rate", .low = 1e-5, .high = 1e-3, .is_log = true},
                 {.name = "epochs", .low = 2, .high = 4, .is_whole = true},
                 {.name = "batch", .values = {"16", "32"}}};
  const auto trials = draw_trials(of), again = draw_trials(of);
  ASSERT_EQ(trials.size(), 200U);
  std::set<Trial::Settings> settings;
  std::set<std::string> epochs;
  int64_t below_middle = 0;
  for (size_t i = 0; i < trials.size(); ++i) {
    EXPECT_EQ(trials[i].settings, again[i].settings);
    EXPECT_EQ(trials[i].number, static_cast<int64_t>(i) + 1);
    settings.insert(trials[i].settings);
    const double rate = std::stod(trials[i].settings[0].second);
    EXPECT_GE(rate, 1e-5);
    EXPECT_LE(rate, 1e-3);
    below_middle += rate < 1e-4 ? 1 : 0;
    epochs.insert(trials[i].settings[1].second);
  }
  EXPECT_EQ(settings.size(), 200U);
  EXPECT_THAT(epochs, ElementsAre("2", "3", "4"));
  EXPECT_NEAR(static_cast<double>(below_middle), 100, 36) << "five standard deviations of a fair coin";
  of.seed = 1;
  EXPECT_NE(draw_trials(of).front().settings, trials.front().settings);
}

TEST_F(SearchTest, EndsWhereNoFurtherTrialIsThere) {
  auto of = options();
  of.settings = {{.name = "batch", .values = {"16", "32"}}, {.name = "epochs", .low = 1, .high = 3, .is_whole = true}};
  of.trials = 100;
  EXPECT_EQ(draw_trials(of).size(), 6U);
}

TEST_F(SearchTest, RungsAreSharesOfTheWholeDownToTheLeast) {
  auto of = options();
  EXPECT_THAT(search_rungs(of), ElementsAre(1.0 / 9, 1.0 / 3, 1));
  of.halving = 2;
  EXPECT_THAT(search_rungs(of), ElementsAre(0.125, 0.25, 0.5, 1));
  of.trials = 2;
  EXPECT_THAT(search_rungs(of), ElementsAre(0.5, 1)) << "one is left then";
  of.halving = 1;
  EXPECT_THAT(search_rungs(of), ElementsAre(1));
}

TEST_F(SearchTest, OnlyTheBestGoOnAndTheBestModelIsKept) {
  for (const int64_t parallel : {1, 3}) {
    auto of = options();
    of.parallel = parallel;
    const auto found = search(of);
    EXPECT_TRUE(found.finished);
    EXPECT_EQ(found.metric, "accuracy");
    std::vector<int64_t> worths;
    std::vector<size_t> parts;
    for (const Trial& trial : found.trials) {
      worths.push_back(worth_of(trial));
      parts.push_back(trial.scores.size());
      EXPECT_EQ(trial.state, trial.scores.size() == 3 ? State::kFinished : State::kDropped);
    }
    EXPECT_TRUE(std::ranges::is_sorted(worths, std::greater())) << "all parts tell the same of a trial";
    EXPECT_THAT(parts, ElementsAre(3, 2, 2, 1, 1, 1, 1, 1, 1));
    EXPECT_EQ(found.trials.front().scores.back().step, 90);
    for (size_t place = 0; place < found.trials.size(); ++place) {
      EXPECT_EQ(fs::exists(trial_file(found.trials[place], "model.safetensors")), place == 0);
      EXPECT_TRUE(fs::exists(trial_file(found.trials[place], "run.json")));
    }
    EXPECT_GT(fs::file_size(of.output / "report.html"), 1000U);
    fs::remove_all(of.output);
  }
}

TEST_F(SearchTest, ATrialThatEndsEarlyTakesAPlaceByItsScoreAlone) {
  auto of = options();
  const auto trials = draw_trials(of);
  const auto worst = std::ranges::min_element(trials, {}, worth_of)->number;
  const auto command = of.command;
  of.command = [&](const Trial& trial, const fs::path& folder, double share) {
    return command(trial, folder, trial.number == worst ? 1 : share);  // as one that runs out of patience
  };
  const auto found = search(of);
  std::vector<size_t> parts;
  for (const Trial& trial : found.trials) {
    parts.push_back(trial.scores.size());
  }
  EXPECT_THAT(parts, ElementsAre(3, 1, 2, 2, 1, 1, 1, 1, 1)) << "it is no better than one that went further";
  EXPECT_EQ(found.trials[1].number, worst);
  EXPECT_EQ(found.trials[1].state, State::kFinished);
}

TEST_F(SearchTest, ATrialThatEndedUnseenIsNotTrainedAgain) {
  auto of = options();
  of.trials = 2;
  of.halving = 1;
  const auto command = of.command;
  of.stop_requested = [] { return true; };
  EXPECT_FALSE(search(of).finished) << "nothing is begun";
  for (const Trial& trial : draw_trials(of)) {
    fs::create_directories(trial_file(trial, "run.json").parent_path());
    std::ofstream(trial_file(trial, "model.safetensors")) << "weights";
    std::ofstream(trial_file(trial, "run.json"))
        << R"({"environment": {"mezzo": "1"}, "metric": "accuracy", "greater_is_better": true, "steps": 90,
            "total_steps": 90, "best_accuracy": 0.5, "best_loss": 0.25, "finished": true})";
  }
  of.stop_requested = [] { return false; };
  of.command = [](const auto&...) { return std::vector<std::string>{"/bin/sh", "-c", "echo there already; exit 2"}; };
  const auto found = search(of);
  EXPECT_TRUE(found.finished);
  for (const Trial& trial : found.trials) {
    EXPECT_EQ(trial.state, State::kFinished);
    EXPECT_EQ(trial.scores.back().value, 0.5);
    EXPECT_EQ(trial.scores.back().loss, 0.25);
  }
}

TEST_F(SearchTest, ATrialThatIsKilledBehindItsEndHasFinished) {
  auto of = options();
  of.trials = 2;
  of.halving = 1;
  const auto command = of.command;
  of.command = [&](const Trial& trial, const fs::path& folder, double share) {
    auto arguments = command(trial, folder, share);
    arguments.back() += "; kill -9 $$";
    return arguments;
  };
  for (const Trial& trial : search(of).trials) {
    EXPECT_EQ(trial.state, State::kFinished) << trial.message;
  }
}

/// All as good as each other by a metric that is 0.5, or null, after the first part.
TEST_F(SearchTest, OfEqualsThoseWithTheLowerLossGoOn) {
  for (const char* value : {"0.5", "null"}) {
    auto of = options();
    of.command = [value](const Trial& trial, const fs::path& folder, double share) {
      return std::vector<std::string>{
          "/bin/sh", "-c",
          fmt::format(
              "mkdir -p {4}; echo weights > {4}/model.safetensors; echo '{{\"environment\": {{\"mezzo\": \"1\"}}, "
              "\"metric\": \"accuracy\", \"greater_is_better\": true, \"steps\": {0}, \"total_steps\": 90, "
              "\"best_accuracy\": {1}, \"best_loss\": {2}, \"finished\": {3}}}' > {4}/run.json",
              std::ceil(share * 90), value, 1 - std::stod(trial.settings.front().second) / 1e6, share == 1,
              folder.string())};
    };
    const auto found = search(of);
    std::vector<int64_t> worths;
    for (const Trial& trial : found.trials) worths.push_back(worth_of(trial));
    EXPECT_TRUE(std::ranges::is_sorted(worths, std::greater())) << value;
    EXPECT_EQ(found.trials.front().state, State::kFinished);
    fs::remove_all(of.output);
  }
}

TEST_F(SearchTest, WhereTheLastOneFailsItIsNoneOfThoseThatWereDropped) {
  auto of = options();
  const auto command = of.command;
  of.command = [&](const Trial& trial, const fs::path& folder, double share) {
    return share == 1 ? std::vector<std::string>{"/bin/sh", "-c", "echo mezzo train: out of memory >&2; exit 1"}
                      : command(trial, folder, share);
  };
  EXPECT_THAT([&] { search(of); }, ThrowsMessage<c10::Error>(HasSubstr("out of memory; the same command tries it")));
  of.command = command;
  const auto found = search(of);
  EXPECT_EQ(found.trials.front().scores.size(), 3U);
  EXPECT_TRUE(fs::exists(trial_file(found.trials.front(), "model.safetensors")));
}

TEST_F(SearchTest, GoesOnWhereItWasStopped) {
  auto of = options();
  const Trial second = draw_trials(of)[1];
  of.stop_requested = [&] { return fs::exists(trial_file(second, "run.json")); };  // after the first has ended
  auto found = search(of);
  EXPECT_FALSE(found.finished);
  const auto begun = std::ranges::count_if(found.trials, [](const Trial& trial) { return !trial.scores.empty(); });
  EXPECT_GT(begun, 0);
  EXPECT_LT(begun, 9);
  of.stop_requested = [] { return false; };
  int64_t started = 0;
  const auto command = of.command;
  of.command = [&](const Trial& trial, const fs::path& folder, double share) {
    ++started;
    return command(trial, folder, share);
  };
  found = search(of);
  EXPECT_TRUE(found.finished);
  EXPECT_EQ(started + begun, 9 + 3 + 1) << "nothing is trained twice";
  started = 0;
  EXPECT_EQ(search(of).trials.front().number, found.trials.front().number);
  EXPECT_EQ(started, 0) << "there is nothing left to do";
}

TEST_F(SearchTest, ATrialThatFailsIsNamedAndTheOthersGoOn) {
  auto of = options();
  const auto command = of.command;
  of.command = [&](const Trial& trial, const fs::path& folder, double share) {
    return trial.number == 2 ? std::vector<std::string>{"/bin/sh", "-c", "echo mezzo train: broken '<' >&2; exit 1"}
                             : command(trial, folder, share);
  };
  const auto found = search(of);
  EXPECT_TRUE(found.finished);
  EXPECT_EQ(found.trials.back().number, 2);
  EXPECT_EQ(found.trials.back().state, State::kFailed);
  EXPECT_EQ(found.trials.back().message, "mezzo train: broken <");
  of.command = command;
  EXPECT_EQ(search(of).trials.back().state, State::kDropped) << "once mended, it is tried again";
  EXPECT_THAT(render_search(of, found), HasSubstr("broken &lt;"));
}

TEST_F(SearchTest, WhereAllTrialsFailSoDoesTheSearch) {
  auto of = options();
  of.command = [](const auto&...) {
    return std::vector<std::string>{"/bin/sh", "-c", "echo mezzo train: there is no such model >&2; exit 1"};
  };
  EXPECT_THAT([&] { search(of); },
              ThrowsMessage<c10::Error>(HasSubstr("the first: mezzo train: there is no such model")));
}

TEST_F(SearchTest, RefusesWhatIsNotThisSearch) {
  auto of = options();
  of.recipe = {{"model", "a"}};
  of.files = {folder_.write("texts.jsonl", "{}"), folder_.path() / "texts.jsonl"};  // train and dev may be one file
  search(of);
  of.recipe = {{"model", "b"}};
  EXPECT_THAT([&] { search(of); }, ThrowsMessage<c10::ValueError>(HasSubstr("train model 'a', which is now 'b'")));
  of.recipe = {};
  EXPECT_THAT([&] { search(of); }, ThrowsMessage<c10::ValueError>(HasSubstr("train model 'a', which is now not set")));
  of = options();
  of.output = folder_.path();  // with a folder in it
  EXPECT_THAT([&] { search(of); }, ThrowsMessage<c10::ValueError>(HasSubstr("holds no search, but other files")));
}

TEST_F(SearchTest, ReadsTheResultsThatItWrote) {
  const auto file = folder_ / "results.json";
  const auto drawn = draw_trials(options());
  SearchResult written{.finished = true, .metric = "log_loss", .greater_is_better = false, .trials = drawn};
  written.trials[1].scores = {{.share = 1.0 / 3, .step = 7, .value = std::nan(""), .loss = 0.75, .seconds = 1.5},
                              {.share = 1, .value = 0.1}};
  written.trials[1].state = State::kFailed;
  written.trials[1].message = "it's \"broken\"";
  std::ranges::reverse(written.trials);  // they are sorted by score there
  write_results(file, {{"a", "1"}}, written);
  const auto read = read_results(file, {{"a", "1"}}, drawn);
  EXPECT_TRUE(read.finished);
  EXPECT_EQ(read.metric, "log_loss");
  EXPECT_FALSE(read.greater_is_better);
  ASSERT_EQ(read.trials.size(), 9U);
  for (size_t i = 0; i < drawn.size(); ++i) EXPECT_EQ(read.trials[i].settings, drawn[i].settings);
  const Trial& failed = read.trials[1];
  EXPECT_EQ(failed.message, "it's \"broken\"");
  EXPECT_EQ(failed.state, State::kFailed);
  ASSERT_EQ(failed.scores.size(), 2U);
  EXPECT_EQ(failed.scores[0].share, 1.0 / 3);
  EXPECT_TRUE(std::isnan(failed.scores[0].value));
  EXPECT_EQ(failed.scores[0].step, 7);
  EXPECT_EQ(failed.scores[0].loss, 0.75);
  EXPECT_EQ(failed.scores[1].value, 0.1);
  EXPECT_TRUE(std::isnan(failed.scores[1].loss));
  auto others = drawn;
  others[3].settings.front().second = "0";
  EXPECT_THAT([&] { read_results(file, {{"a", "1"}}, others); },
              ThrowsMessage<c10::ValueError>(HasSubstr("trial 4 has other settings than this search draws")));
}

TEST_F(SearchTest, ResultsThatAreCutOffAreRefusedInOneLine) {
  const auto of = options();
  search(of);
  const auto file = of.output / "results.json";
  for (auto size = fs::file_size(file) - 1; size-- > 0;) {
    fs::resize_file(file, size);
    try {
      search(of);
      ADD_FAILURE() << size;
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(std::string(error.what_without_backtrace()).find('\n'), std::string::npos);
    }
  }
}

TEST_F(SearchTest, ResumesAfterItWasKilledAtOnce) {
  const auto of = options();
  fs::create_directories(of.output);
  std::ofstream(of.output / ".run.lock") << "process 1 on host\n";
  std::ofstream(of.output / ".results.json.123.0.tmp") << "{";
  EXPECT_TRUE(search(of).finished);
}

TEST_F(SearchTest, SettingsStayWithinNarrowRanges) {
  for (const auto& [low, high] : {std::pair(0.999, 0.9999), {0.00123456, 0.00123499}, {1.2345e-5, 9e-5}, {-1.0, 1.0}}) {
    const SearchedSetting setting{.name = "beta", .low = low, .high = high};
    std::set<std::string> values;
    for (int i = 0; i < 100; ++i) {
      values.insert(setting.value_at(i / 100.0));
      EXPECT_GE(std::stod(setting.value_at(i / 100.0)), low);
      EXPECT_LE(std::stod(setting.value_at(i / 100.0)), high);
    }
    EXPECT_GT(values.size(), 20U) << low;
  }
}

}  // namespace
}  // namespace mezzo::text
