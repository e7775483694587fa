#include "mezzo/text/data/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(RowsTest, KeepsRowsOfAnyLength) {
  const Rows<int32_t> ids{{1, 2}, {}, {3}};
  EXPECT_THAT(ids, ElementsAre(ElementsAre(1, 2), IsEmpty(), ElementsAre(3)));
  const int64_t places[] = {2, 0, 2};
  EXPECT_THAT(ids.select(places), ElementsAre(ElementsAre(3), ElementsAre(1, 2), ElementsAre(3)));
  EXPECT_THAT(ids.subspan(1, 1), ElementsAre(IsEmpty()));
  EXPECT_THAT(Rows<int32_t>().subspan(1, 1), IsEmpty());
  Texts texts{"a", "", "b c"};
  EXPECT_THAT(texts, ElementsAre("a", "", "b c"));
  EXPECT_EQ(texts, (Texts{"a", "", "b c"}));
  EXPECT_FALSE(texts == (Texts{"a", "", "b d"}));
}

TEST(RowsTest, SaysInWhichOrderAFileHasThem) {
  const ScratchFolder folder;
  const int64_t places[] = {2, 0, 2, 1};
  Texts texts(std::make_shared<RowMemory>(0, folder.path()));
  for (const char* text : {"a", "b", "c"}) texts.push_back(text);
  EXPECT_THAT(texts.select(places).storage_order(), ElementsAre(1, 3, 0, 2));
  EXPECT_THAT((Texts{"a", "b", "c"}.select(places).storage_order()), ElementsAre(0, 1, 2, 3));
  for (int i = 0; i < 100; ++i) texts.push_back(std::string(1000, 'x'));  // in several blocks, in any order in memory
  std::vector<int64_t> order(texts.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  EXPECT_EQ(texts.storage_order(), order);
}

TEST(RowsTest, KeepsSelectionsWhenTheOthersAreGone) {
  Texts some;
  {
    const Texts all{"first", std::string(100, 'x')};
    const int64_t second[] = {1};
    some = all.select(second);
  }
  some.push_back("more");
  EXPECT_THAT(some, ElementsAre(std::string(100, 'x'), "more"));
}

TEST(RowsTest, MovesToAFileBeyondTheLimitAndReadsTheSame) {
  const ScratchFolder folder;
  std::mt19937 random(1);
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 20'000; ++i) {
    expected.emplace_back(random() % 300);
    std::iota(expected.back().begin(), expected.back().end(), static_cast<int32_t>(random()));
  }
  expected.emplace_back(3'000'000, 7);  // longer than a block
  for (const int64_t limit : {int64_t{0}, int64_t{100'000}, int64_t{1} << 40}) {
    const auto memory = std::make_shared<RowMemory>(limit, folder.path());
    Rows<int32_t> rows(memory);
    for (const auto& row : expected) rows.push_back(row);
    EXPECT_EQ(rows, Rows<int32_t>(expected));
    EXPECT_LE(memory->bytes_in_memory(), limit);
    EXPECT_EQ(memory->bytes_in_files() > 0, limit <= 100'000);
    EXPECT_EQ(memory->bytes_in_memory() > 0, limit > 0);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the file has no name";
    rows = {};
    EXPECT_EQ(memory->bytes_in_memory() + memory->bytes_in_files(), 0);
  }
}

TEST(RowsTest, NamesAFolderWithoutRoom) {
  const ScratchFolder folder;
  Texts texts(std::make_shared<RowMemory>(0, "/proc"));
  try {
    texts.push_back("a");
    FAIL() << "nothing was thrown";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/proc: no temporary file can be made here: "));
  }
}

}  // namespace
}  // namespace mezzo::text
