#include "text/io/words.h"

#include <gtest/gtest.h>

#include <limits>

namespace mezzo::text {
namespace {

TEST(WordsTest, OneIsSingularAndAllElsePlural) {
  EXPECT_EQ(counted(1, "thread"), "1 thread");
  EXPECT_EQ(counted(0, "thread"), "0 threads");
  EXPECT_EQ(counted(21, "thread"), "21 threads");
  EXPECT_EQ(counted(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(counted(2, "batch", "batches"), "2 batches");
}

TEST(WordsTest, DurationsReadAsPeopleSayThem) {
  EXPECT_EQ(duration_in_words(0.264), "0.3 s");
  EXPECT_EQ(duration_in_words(0), "0.1 s") << "nothing takes no time at all";
  EXPECT_EQ(duration_in_words(9.94), "9.9 s");
  EXPECT_EQ(duration_in_words(9.96), "10 s");
  EXPECT_EQ(duration_in_words(59.4), "59 s");
  EXPECT_EQ(duration_in_words(59.6), "1 min");
  EXPECT_EQ(duration_in_words(252), "4 min 12 s");
  EXPECT_EQ(duration_in_words(3599.6), "1 h");
  EXPECT_EQ(duration_in_words(2 * 3600 + 5 * 60 + 20), "2 h 5 min");
  EXPECT_EQ(duration_in_words(23 * 3600 + 59 * 60 + 40), "1 d");
  EXPECT_EQ(duration_in_words((3 * 24 + 4) * 3600), "3 d 4 h");
  EXPECT_EQ(duration_in_words(std::numeric_limits<double>::quiet_NaN()), "–");
}

}  // namespace
}  // namespace mezzo::text
