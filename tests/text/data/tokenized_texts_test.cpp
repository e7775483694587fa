#include "mezzo/text/data/tokenized_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// An id a byte; those after a '|' are of a second text.
class ByteTokenizer : public Tokenizer {
 public:
  Encoding encode(std::string_view text, int64_t max_length) const override {
    Encoding encoding;
    encoding.truncated = max_length > 0 && text.size() > static_cast<size_t>(max_length);
    int32_t type = 0;
    for (const char c : encoding.truncated ? text.substr(0, max_length) : text) {
      encoding.input_ids.push_back(c);
      encoding.token_type_ids.push_back(type);
      type |= c == '|';
    }
    return encoding;
  }
  Encoding encode(std::string_view text, std::string_view, int64_t max_length) const override {
    return encode(text, max_length);
  }
  int64_t vocab_size() const override { return 256; }
  int64_t model_max_length() const override { return 0; }
  void save(const std::filesystem::path&, int64_t) const override {}
};

TEST(TokenizedTextsTest, EncodesEachTextAndCountsThoseThatWereCut) {
  const std::vector<std::string> texts(200, "abc");
  const auto tokenized = tokenize(ByteTokenizer(), texts, /*max_length=*/2);
  EXPECT_EQ(tokenized.ids.size(), 200u);
  EXPECT_TRUE(
      std::ranges::all_of(tokenized.ids, [](const auto& ids) { return ids == std::vector<int32_t>{'a', 'b'}; }));
  EXPECT_EQ(tokenized.truncated, 200);
  EXPECT_FALSE(tokenized.targets.defined());
}

TEST(TokenizedTextsTest, KeepsTokenTypesOnlyWhereATextHasSome) {
  EXPECT_THAT(tokenize(ByteTokenizer(), std::vector<std::string>{"a", "bc"}, 0).token_types, IsEmpty());
  EXPECT_THAT(tokenize(ByteTokenizer(), std::vector<std::string>{"a", "b|c"}, 0).token_types,
              ElementsAre(ElementsAre(0), ElementsAre(0, 0, 1)));
}

}  // namespace
}  // namespace mezzo::text
