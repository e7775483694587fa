#include "mezzo/text/io/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>

#include "text/io/printable.h"

namespace mezzo::text {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

/// A bar on a file, with a clock that moves when it is told to.
class ProgressBarTest : public testing::Test {
 protected:
  ProgressBarTest() { ::setenv("LC_ALL", "C.UTF-8", 1); }

  ProgressBar::Options options(ProgressStyle style, int width = 80) {
    return {.label = label_, .total = 288, .style = style, .stream = file_.get(), .width = width, .clock = [this] {
              return now_;
            }};
  }

  /// The output since the last call.
  std::string printed() {
    std::fflush(file_.get());
    const long end = std::ftell(file_.get());
    std::string text(static_cast<size_t>(end - read_), '\0');
    std::fseek(file_.get(), read_, SEEK_SET);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file_.get()), text.size());
    std::fseek(file_.get(), end, SEEK_SET);
    read_ = end;
    return text;
  }

  std::string line_at_width(int width, const std::string& text, const std::string& less = "") {
    ProgressBar bar(options(ProgressStyle::kTerminal, width));
    now_ += 52;
    bar.update(178, text, less);
    bar.finish();
    const std::string twice = printed();
    const size_t start = twice.rfind('\r') + 1;
    return twice.substr(start, twice.find('\x1b', start) - start);
  }

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), &std::fclose};
  std::string label_ = "train";
  double now_ = 1000;
  long read_ = 0;
};

constexpr const char* kText = "loss 0.412  best 0.664  epoch 1.8  lr 2.1e-05";
constexpr const char* kLess = "31.2 samples/s  scale 65536";

TEST_F(ProgressBarTest, ShowsBarCountTimesAndText) {
  EXPECT_EQ(line_at_width(140, kText, kLess),
            "train  61% ━━━━━━━━━━━╸─────── 178/288  0:32 left  loss 0.412  best 0.664  epoch 1.8  lr 2.1e-05  31.2 "
            "samples/s  scale 65536  0:52 elapsed");
}

TEST_F(ProgressBarTest, FitsEveryWidthAndLeavesOutTheLastPiecesFirst) {
  label_ = "";
  EXPECT_EQ(line_at_width(80, kText, kLess),
            " 61% ━━━━╸─── 178/288  0:32 left  loss 0.412  best 0.664  epoch 1.8  lr 2.1e-05");
  EXPECT_EQ(line_at_width(79, kText, kLess), " 61% 178/288  0:32 left  loss 0.412  best 0.664  epoch 1.8  lr 2.1e-05")
      << "the bar goes before one of the first pieces";
  EXPECT_EQ(line_at_width(80, "loss 0.412  epoch 1.8  lr 2.1e-05", kLess),
            " 61% ━━━━━━━━━━━━──────── 178/288  0:32 left  loss 0.412  epoch 1.8  lr 2.1e-05");
  EXPECT_EQ(line_at_width(40, kText, kLess), " 61% 178/288  0:32 left  loss 0.412");
  label_ = "train";
  for (int width = 1; width <= 250; ++width) {
    for (const char* text : {kText, "", "损失 0.412  每秒 31.2 条  \xff\xff"}) {
      EXPECT_LT(display_width(line_at_width(width, text, kLess)), std::max(2, width)) << width;
    }
  }
}

TEST_F(ProgressBarTest, DrawsInAsciiWhereTheLocaleIsNotUtf8) {
  ::setenv("LC_ALL", "C", 1);
  EXPECT_EQ(line_at_width(80, ""), "train  61% =====================>------------- 178/288  0:32 left  0:52 elapsed");
}

TEST_F(ProgressBarTest, RedrawsInPlaceNoMoreOftenThanAsked) {
  ProgressBar bar(options(ProgressStyle::kTerminal));
  int redraws = 0;
  for (int64_t step = 1; step <= 200; ++step) {
    now_ += 0.01;
    bar.update(step, kText);
    redraws += printed().empty() ? 0 : 1;
  }
  EXPECT_GE(redraws, 18);
  EXPECT_LE(redraws, 21);
}

TEST_F(ProgressBarTest, PrintsLinesAboveTheBar) {
  ProgressBar bar(options(ProgressStyle::kTerminal));
  bar.update(1, kText);
  const std::string drawn = printed();
  bar.print_line("dev accuracy 0.51");
  EXPECT_EQ(printed(), "\r\x1b[Kdev accuracy 0.51\n" + drawn);
}

TEST_F(ProgressBarTest, PrintsLinesPlainlyBeforeTheFirstDraw) {
  ProgressBar bar(options(ProgressStyle::kTerminal));
  bar.print_line("one");
  EXPECT_EQ(printed(), "one\n");
}

TEST_F(ProgressBarTest, FinishShowsTheLastUpdateAndEndsTheLineOnce) {
  ProgressBar bar(options(ProgressStyle::kTerminal));
  bar.update(1);
  bar.update(288, "loss 0.1");
  printed();
  bar.finish();
  const std::string last = printed();
  EXPECT_THAT(last, HasSubstr("train 100% ━━━━━━━━━━"));
  EXPECT_THAT(last, HasSubstr("288/288  0:00 elapsed  loss 0.1"));
  EXPECT_THAT(last, EndsWith("\x1b[K\n"));
  bar.finish();
  bar.update(289);
  EXPECT_EQ(printed(), "");
}

TEST_F(ProgressBarTest, LeavesTheLineWhenAnExceptionPassesBy) {
  {
    ProgressBar bar(options(ProgressStyle::kTerminal));
    bar.update(1);
    printed();
  }
  EXPECT_EQ(printed(), "\n");
}

TEST_F(ProgressBarTest, PrintsPlainLinesEverySoManySecondsToAFile) {
  {
    ProgressBar bar(options(ProgressStyle::kAuto));
    for (int64_t step = 1; step <= 288; ++step) {
      now_ += 0.1;
      bar.update(step, "loss 0.412  31.2 samples/s");
    }
    bar.print_line("dev accuracy 0.51");
    bar.finish();
  }
  EXPECT_EQ(printed(),
            "train   0%   1/288  0:00 elapsed  loss 0.412  31.2 samples/s\n"
            "train  35% 101/288  0:19 left  loss 0.412  31.2 samples/s  0:10 elapsed\n"
            "train  69% 201/288  0:09 left  loss 0.412  31.2 samples/s  0:20 elapsed\n"
            "dev accuracy 0.51\n"
            "train 100% 288/288  0:28 elapsed  loss 0.412  31.2 samples/s\n");
}

TEST_F(ProgressBarTest, PrintsPlainLinesEverySoManySteps) {
  auto every_100 = options(ProgressStyle::kLines);
  every_100.line_steps = 100;
  ProgressBar bar(every_100);
  for (int64_t step = 1; step <= 201; ++step) {
    bar.update(step);
  }
  bar.finish();
  EXPECT_EQ(printed(),
            "train   0%   1/288  0:00 elapsed\ntrain  35% 101/288  0:00 left  0:00 elapsed\n"
            "train  69% 201/288  0:00 left  0:00 elapsed\n");
}

TEST_F(ProgressBarTest, QuietPrintsNothing) {
  {
    ProgressBar bar(options(ProgressStyle::kQuiet));
    bar.update(1, kText);
    bar.print_line("one");
    bar.finish();
  }
  EXPECT_EQ(printed(), "");
}

TEST_F(ProgressBarTest, ReckonsTheTimeLeftFromTheStepsOfThisRun) {
  auto resumed = options(ProgressStyle::kTerminal, 120);
  resumed.initial = 188;
  ProgressBar bar(resumed);
  now_ += 3600;
  bar.update(238);
  EXPECT_THAT(printed(), HasSubstr("238/288  1:00:00 left  1:00:00 elapsed"));
}

TEST_F(ProgressBarTest, EstimatesTheTimeLeftFromTenStepsOn) {
  auto resumed = options(ProgressStyle::kLines);
  resumed.initial = 100;
  resumed.line_steps = 1;
  ProgressBar bar(resumed);
  for (int64_t step = 101; step <= 110; ++step) {
    now_ += step == 101 ? 10 : 1;  // the first step sets things up
    bar.update(step);
    EXPECT_THAT(printed(), step < 110 ? testing::HasSubstr("/288  0:1") : testing::HasSubstr("/288  5:38 left  0:19"));
  }
}

TEST_F(ProgressBarTest, ShowsOnlyCountAndTimeOfAWorkOfUnknownLength) {
  auto unknown = options(ProgressStyle::kTerminal);
  unknown.total = 0;
  unknown.unit = "rows";
  ProgressBar bar(unknown);
  now_ += 90061;
  bar.update(12345, "3.2 MB/s");
  EXPECT_EQ(printed(), "\rtrain 12345 rows  1d 01:01 elapsed  3.2 MB/s\x1b[K");
}

TEST_F(ProgressBarTest, TextCannotSteerTheTerminal) {
  ProgressBar bar(options(ProgressStyle::kTerminal));
  bar.update(1, "a\nb\x1b[2J\x07\xc2\x9bz");
  EXPECT_THAT(printed(), HasSubstr("a b[2Jz\x1b[K"));
  bar.print_line("\x1b]0;title\x07one\rtwo");
  EXPECT_THAT(printed(), StartsWith("\r\x1b[K]0;titleonetwo\n"));
}

TEST_F(ProgressBarTest, EqualTimesAndStepsBeyondTheTotalDoNoHarm) {
  auto tiny = options(ProgressStyle::kTerminal, 1);
  tiny.total = 3;
  ProgressBar bar(tiny);
  bar.update(0);
  bar.update(7);
  bar.finish();
  EXPECT_THAT(printed(), EndsWith("\n"));
}

TEST(PrintableTest, ReplacesInvalidUtf8AndDropsControlCharacters) {
  EXPECT_EQ(printable("a\tb\n\x01\x7f中\xf0\x9f\x98\x80"), "a b 中\xf0\x9f\x98\x80");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(printable("\x80"), bad);
  EXPECT_EQ(printable("\xe4\xb8"), bad) << "cut off";
  EXPECT_EQ(printable("\xc0\xaf"), bad + bad) << "longer than need be";
  EXPECT_EQ(printable("\xed\xa0\x80"), bad + bad + bad) << "half a surrogate pair";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), bad + bad + bad + bad) << "beyond Unicode";
}

TEST(PrintableTest, CountsTheColumnsOfATerminal) {
  EXPECT_EQ(display_width("abc"), 3u);
  EXPECT_EQ(display_width("情绪"), 4u);
  EXPECT_EQ(display_width("e\xCC\x81"), 1u) << "a combining accent";
  EXPECT_EQ(truncate_to_width("情绪", 3), "情");
  EXPECT_EQ(truncate_to_width("abc", 99), "abc");
  EXPECT_EQ(truncate_to_width("abc", 0), "");
}

}  // namespace
}  // namespace mezzo::text
