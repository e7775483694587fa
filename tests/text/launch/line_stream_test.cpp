#include "text/launch/line_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/launch/pipe.h"

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

class LineStreamTest : public testing::Test {
 protected:
  LineStream stream(bool drawn) { return {std::move(pipe_.read), drawn}; }

  void say(const std::string& bytes) const {
    ASSERT_EQ(::write(pipe_.write.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }

  void hear(LineStream& stream) {
    stream.read([this](std::string_view line) { lines_.emplace_back(line); });
  }

  Pipe pipe_ = make_pipe();
  std::vector<std::string> lines_;
};

TEST_F(LineStreamTest, EmitsALineWhenItIsWholeAndTheRestAtTheEnd) {
  auto lines = stream(/*drawn=*/false);
  say("one\n\ntw");
  hear(lines);
  EXPECT_THAT(lines_, ElementsAre("one", ""));
  say("o\r\nthr");
  say(std::string("ee\0\xff", 4));
  hear(lines);
  EXPECT_THAT(lines_, ElementsAre("one", "", "two\r"));
  EXPECT_TRUE(lines.is_open());
  pipe_.write.reset();
  hear(lines);
  EXPECT_FALSE(lines.is_open());
  EXPECT_THAT(lines_, ElementsAre("one", "", "two\r", std::string("three\0\xff", 7)));
}

TEST_F(LineStreamTest, CutsALineThatDoesNotEnd) {
  auto lines = stream(/*drawn=*/false);
  const std::string piece(size_t{1} << 15, 'x');
  for (int i = 0; i < 80; ++i) {  // two and a half mebibytes
    say(piece);
    hear(lines);
  }
  EXPECT_THAT(lines_, ElementsAre(SizeIs(size_t{1} << 20), SizeIs(size_t{1} << 20)));
}

TEST_F(LineStreamTest, KeepsTheLineThatIsDrawnInPlace) {
  auto lines = stream(/*drawn=*/true);
  say("begun");
  hear(lines);
  EXPECT_EQ(lines.live(), "");  // a line that will end as any other
  say("\r10%\x1b[K\r20%\x1b[K");
  hear(lines);
  EXPECT_EQ(lines.live(), "20%\x1b[K");
  EXPECT_THAT(lines_, ElementsAre());
  say("\nnext\n");
  hear(lines);
  EXPECT_EQ(lines.live(), "");
  EXPECT_THAT(lines_, ElementsAre("20%\x1b[K", "next"));
}

TEST_F(LineStreamTest, QuotesTheLastLineWithoutWhatSteersATerminal) {
  auto lines = stream(/*drawn=*/false);
  say("first\n\x1b[31mred\x1b[0m\tand\a plain\n\n");
  hear(lines);
  EXPECT_EQ(lines.last_line(), "red and plain");
  for (int shift = 0; shift < 3; ++shift) {
    std::string text(static_cast<size_t>(shift), 'x');
    for (int i = 0; i < 200; ++i) text += "中";
    say(text + "\n");
    hear(lines);
    const std::string quote = lines.last_line();
    EXPECT_LE(quote.size(), 303U);
    EXPECT_EQ(quote.substr(quote.size() - 6), "中…") << "cut inside a character";
  }
}

}  // namespace
}  // namespace mezzo::text
