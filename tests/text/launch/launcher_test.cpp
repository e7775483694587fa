#include "mezzo/text/launch/launcher.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <string>

namespace mezzo::text {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;

struct Outcome {
  int status = 0;
  std::string output;  ///< stdout and stderr
};

/// Runs the test program that calls launch(), as a separate process.
Outcome run(const std::string& arguments) {
  const char* program = std::getenv("MEZZO_LAUNCH_PROGRAM");
  if (program == nullptr) {
    ADD_FAILURE() << "MEZZO_LAUNCH_PROGRAM names no program; run the tests by ctest";
    return {};
  }
  const std::string command = "timeout -k 5 60 '" + std::string(program) + "' " + arguments + " 2>&1";
  std::FILE* stream = ::popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer{};
  for (size_t count = 0; (count = std::fread(buffer.data(), 1, buffer.size(), stream)) > 0;) {
    outcome.output.append(buffer.data(), count);
  }
  outcome.status = WEXITSTATUS(::pclose(stream));
  return outcome;
}

std::string refusal(const LaunchOptions& options) {
  try {
    launch(options);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "(nothing was thrown)";
}

TEST(LauncherTest, RefusesOptionsOutOfRange) {
  const LaunchOptions good({"true"});
  EXPECT_EQ(refusal(LaunchOptions({})), "there is no command to launch");
  EXPECT_EQ(refusal(LaunchOptions(good).nproc(0)), "nproc is 0, expected 1 to 1024");
  EXPECT_EQ(refusal(LaunchOptions(good).nproc(1025)), "nproc is 1025, expected 1 to 1024");
  EXPECT_EQ(refusal(LaunchOptions(good).nnodes(-1)), "nnodes is -1, expected at least 1");
  EXPECT_EQ(refusal(LaunchOptions(good).max_restarts(-1)), "max_restarts is -1, expected at least 0");
  EXPECT_EQ(refusal(LaunchOptions(good).grace_seconds(-1)), "grace_seconds is -1 seconds, expected 0 to 1e+06");
  EXPECT_EQ(refusal(LaunchOptions(good).node_rank(1)), "node_rank is 1, expected 0 to 0: nnodes is 1");
  EXPECT_EQ(refusal(LaunchOptions(good).nnodes(2)),
            "with 2 nodes master_addr and master_port are needed, to reach node 0");
  EXPECT_EQ(refusal(LaunchOptions(good).nnodes(2).master_addr("node0").master_port(65535).max_restarts(1)),
            "master_port is 65535, expected 1 to 65533");
  EXPECT_EQ(refusal(LaunchOptions(good).nnodes(2).min_nnodes(3)), "min_nnodes is 3, expected 0 to 2, nnodes");
}

TEST(LauncherTest, ShowsEveryLineWholeAndWithItsRank) {
  const auto [status, output] = run("nproc=3 -- sh -c 'echo out $RANK/$WORLD_SIZE; echo err >&2; printf end'");
  EXPECT_EQ(status, 0);
  std::vector<std::string> lines;
  for (size_t begin = 0, end = 0; (end = output.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(output.substr(begin, end - begin));
  }
  EXPECT_THAT(lines,
              UnorderedElementsAre("[rank 0] out 0/3", "[rank 0] err", "[rank 0] end", "[rank 1] out 1/3",
                                   "[rank 1] err", "[rank 1] end", "[rank 2] out 2/3", "[rank 2] err", "[rank 2] end"));
}

TEST(LauncherTest, EndsTheOthersAndNamesTheRankThatFailed) {
  const auto [status, output] = run("nproc=2 -- sh -c 'test $RANK = 0 && exec sleep 1000; echo oops >&2; exit 3'");
  EXPECT_EQ(status, 3);
  // Not gtest's MatchesRegex: Oniguruma exports a regcomp with other flags.
  const std::regex expected(
      "\\[rank 1\\] oops\nlaunch: rank 1 \\(pid \\d+\\) ended with exit status 3; it said: oops\n");
  EXPECT_TRUE(std::regex_match(output, expected)) << output;
}

TEST(LauncherTest, NamesTheRankThatWasKilledThoughAPeerFailsAsWell) {
  const auto [status, output] =
      run("nproc=2 -- sh -c 'test $RANK = 1 && { sleep 0.05; kill -SEGV $$; }; echo peer is gone >&2; exit 1'");
  EXPECT_EQ(status, 128 + 11);
  EXPECT_THAT(output, AllOf(HasSubstr("rank 1 (pid "), HasSubstr(") was killed by signal 11 (SIGSEGV)\n")));
}

TEST(LauncherTest, StartsAllRanksAgainAsOftenAsAskedFor) {
  const auto good = run("nproc=2 max_restarts=2 -- sh -c 'test $TORCHELASTIC_RESTART_COUNT = 1 || exit 7'");
  EXPECT_EQ(good.status, 0);
  EXPECT_THAT(good.output, AllOf(HasSubstr("; all ranks start again, restart 1 of 2\n"), Not(HasSubstr("2 of 2"))));
  const auto bad = run("nproc=2 max_restarts=1 -- sh -c 'exit 7' -- sh -c 'exit 8'");
  EXPECT_EQ(bad.status, 8);
  EXPECT_THAT(bad.output, HasSubstr("ended with exit status 7; all ranks start again, restart 1 of 1\n"));
  const auto usage = run("max_restarts=1 -- sh -c 'exit 2'");
  EXPECT_EQ(usage.status, 2);
  EXPECT_THAT(usage.output, Not(HasSubstr("again")));
}

TEST(LauncherTest, LeavesNoProcessOfARankBehind) {
  const auto [status, output] = run("nproc=2 -- sh -c 'sleep 1000 & echo $!'");
  EXPECT_EQ(status, 0);
  for (size_t begin = 0; (begin = output.find("] ", begin)) != std::string::npos; ++begin) {
    const auto pid = static_cast<pid_t>(std::stol(output.substr(begin + 2)));
    EXPECT_EQ(::kill(pid, 0), -1) << output;
  }
}

TEST(LauncherTest, SaysThatTheCommandCannotBeRun) {
  const auto [status, output] = run("nproc=2 -- /no/such/program");
  EXPECT_EQ(status, 100);
  EXPECT_EQ(output, "Error: cannot run '/no/such/program': it does not exist. Check the path\n");
}

}  // namespace
}  // namespace mezzo::text
