#include "mezzo/text/data/tokenized_texts.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "text/scratch_folder.h"

namespace mezzo::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Words = std::vector<std::string>;

/// An id a byte, of both texts.
class ByteTokenizer : public Tokenizer {
 public:
  Encoding encode(std::string_view text, int64_t max_length) const override { return encode(text, "", max_length); }
  Encoding encode(std::string_view text, std::string_view pair, int64_t max_length) const override {
    Encoding encoding;
    encoding.input_ids.assign(text.begin(), text.end());
    encoding.input_ids.insert(encoding.input_ids.end(), pair.begin(), pair.end());
    encoding.token_type_ids.resize(text.size(), 0);
    encoding.token_type_ids.resize(encoding.input_ids.size(), 1);
    encoding.truncated = max_length > 0 && encoding.input_ids.size() > static_cast<size_t>(max_length);
    if (encoding.truncated) {
      encoding.input_ids.resize(max_length);
      encoding.token_type_ids.resize(max_length);
    }
    return encoding;
  }
  Encoding encode_words(std::span<const std::string> words, int64_t max_length) const override {
    Encoding encoding;
    for (size_t i = 0; i < words.size(); ++i) {
      encoding.input_ids.insert(encoding.input_ids.end(), words[i].begin(), words[i].end());
      encoding.word_ids.resize(encoding.input_ids.size(), static_cast<int32_t>(i));
    }
    encoding.truncated = max_length > 0 && encoding.input_ids.size() > static_cast<size_t>(max_length);
    if (encoding.truncated) {
      encoding.input_ids.resize(max_length);
      encoding.word_ids.resize(max_length);
    }
    return encoding;
  }
  std::vector<std::string> split_words(std::string_view text) const override { return {std::string(text)}; }
  std::vector<Encoding> encode_windows(std::string_view text, int64_t max_length, int64_t) const override {
    std::vector<Encoding> windows;
    do {
      windows.push_back(encode(text.substr(0, max_length), 0));
      text.remove_prefix(std::min(text.size(), static_cast<size_t>(max_length)));
    } while (!text.empty());
    return windows;
  }
  int64_t vocab_size() const override { return 256; }
  int64_t model_max_length() const override { return 0; }
  int32_t pad_id() const override { return -1; }
  const std::string& token(int32_t) const override {
    static const std::string none;
    return none;
  }
  void save(const std::filesystem::path&, const TokenizerSaveOptions&) const override {}
};

TEST(TokenizedTextsTest, EncodesEachTextAndCountsThoseThatWereCut) {
  const std::vector<std::string> texts(200, "abc");
  const auto tokenized = tokenize(ByteTokenizer(), texts, {}, /*max_length=*/2);
  EXPECT_EQ(tokenized.ids.size(), 200u);
  EXPECT_THAT(tokenized.ids, testing::Each(ElementsAre('a', 'b')));
  EXPECT_EQ(tokenized.truncated, 200);
  EXPECT_FALSE(tokenized.targets.defined());
}

TEST(TokenizedTextsTest, EncodesPairsWithTheirTypes) {
  const auto pairs = tokenize(ByteTokenizer(), Texts{"a", "bc"}, Texts{"", "d"}, /*max_length=*/0);
  EXPECT_THAT(pairs.ids, ElementsAre(ElementsAre('a'), ElementsAre('b', 'c', 'd')));
  EXPECT_THAT(pairs.token_types, ElementsAre(ElementsAre(0), ElementsAre(0, 0, 1)));
}

TEST(TokenizedTextsTest, KeepsNoTokenTypesWhereAllAreZero) {
  EXPECT_THAT(tokenize(ByteTokenizer(), Texts{"a", "bc"}, {}, 0).token_types, IsEmpty());
  EXPECT_THAT(tokenize(ByteTokenizer(), Texts{"a", "bc"}, Texts{"", ""}, 0).token_types, IsEmpty());
}

TEST(TokenizedTextsTest, RefusesAnotherNumberOfSecondTexts) {
  EXPECT_THROW(tokenize(ByteTokenizer(), Texts{"a", "bc"}, Texts{"d"}, 0), c10::ValueError);
}

TEST(TokenizedTextsTest, KeepsFewLongTextsInMemoryAtATime) {
  std::vector<int64_t> done;
  TokenizeOptions options;
  options.on_texts = [&](int64_t texts) { done.push_back(texts); };
  tokenize(ByteTokenizer(), Texts(std::vector<std::string>(3, std::string(20 << 20, 'a'))), {}, /*max_length=*/2,
           options);
  EXPECT_THAT(done, ElementsAre(2, 3));
}

TEST(TokenizedTextsTest, EncodesWindowsAndKeepsTheirLengthsWhereThereAreAny) {
  const auto tokenized = tokenize_windows(ByteTokenizer(), Texts{"ab", "abcde"}, /*max_length=*/2, /*stride=*/0);
  EXPECT_THAT(tokenized.ids, ElementsAre(ElementsAre('a', 'b'), ElementsAre('a', 'b', 'c', 'd', 'e')));
  EXPECT_THAT(tokenized.window_lengths, ElementsAre(ElementsAre(2), ElementsAre(2, 2, 1)));
  EXPECT_EQ(tokenized.longest(1), 2);
  EXPECT_EQ(tokenized.num_windows(1), 3);
  const auto whole = tokenize_windows(ByteTokenizer(), Texts{"ab", "abcde"}, /*max_length=*/5, /*stride=*/0);
  EXPECT_THAT(whole.window_lengths, IsEmpty());
  EXPECT_EQ(whole.longest(1), 5);
}

TEST(TokenizedTextsTest, PutsTextsBehindOthersWhateverEitherLacks) {
  const auto with_types = [] { return tokenize(ByteTokenizer(), Texts{"a", "b"}, Texts{"c", ""}, /*max_length=*/0); };
  const auto in_windows = [] {
    return tokenize_windows(ByteTokenizer(), Texts{"abc"}, /*max_length=*/2, /*stride=*/0);
  };
  const auto plain = [] { return tokenize(ByteTokenizer(), Texts{"de"}, {}, /*max_length=*/0); };
  TokenizedTexts texts;
  append(texts, plain());
  EXPECT_THAT(texts.token_types, IsEmpty());
  EXPECT_THAT(texts.window_lengths, IsEmpty());
  append(texts, with_types());
  append(texts, plain());
  EXPECT_THAT(texts.ids,
              ElementsAre(ElementsAre('d', 'e'), ElementsAre('a', 'c'), ElementsAre('b'), ElementsAre('d', 'e')));
  EXPECT_THAT(texts.token_types, ElementsAre(ElementsAre(0, 0), ElementsAre(0, 1), ElementsAre(0), ElementsAre(0, 0)));
  TokenizedTexts windows = plain();
  append(windows, in_windows());
  append(windows, plain());
  EXPECT_THAT(windows.window_lengths, ElementsAre(ElementsAre(2), ElementsAre(2, 1), ElementsAre(2)));

  const auto some = subspan(texts, 1, 2);
  EXPECT_THAT(some.ids, ElementsAre(ElementsAre('a', 'c'), ElementsAre('b')));
  EXPECT_THAT(some.token_types, ElementsAre(ElementsAre(0, 1), ElementsAre(0)));
  EXPECT_THAT(some.window_lengths, IsEmpty());
  EXPECT_THAT(subspan(windows, 1, 1).window_lengths, ElementsAre(ElementsAre(2, 1)));
}

TEST(TokenizedTextsTest, KeepsTheWordsOfTokensWhereTextsArePutTogether) {
  const std::vector<Words> words = {{"ab", "c"}}, others = {{"d"}};
  auto texts = tokenize(ByteTokenizer(), words, /*max_length=*/2);
  append(texts, tokenize(ByteTokenizer(), others, /*max_length=*/2));
  EXPECT_THAT(texts.word_ids, ElementsAre(ElementsAre(0, 0), ElementsAre(0)));
  EXPECT_EQ(texts.truncated, 1);
  EXPECT_THAT(subspan(texts, 1, 1).word_ids, ElementsAre(ElementsAre(0)));
}

TEST(TokenizedTextsTest, GivesTargetsOfWordsToTheirFirstTokens) {
  const std::vector<Words> words = {{"ab", "", "c"}, {"d"}, {}, {"e", "fgh", "i"}};
  auto tokenized = tokenize(ByteTokenizer(), words, /*max_length=*/3);
  EXPECT_EQ(tokenized.truncated, 1);
  constexpr int32_t kNone = TokenizedTexts::kNoTarget;
  set_targets(tokenized, at::tensor({7, 8, 9, 6, kNone, kNone, kNone, kNone, kNone, 1, 2, 3}, at::kInt).view({4, 3}));
  EXPECT_TRUE(
      at::equal(tokenized.targets,
                at::tensor({7, kNone, 9, 6, kNone, kNone, kNone, kNone, kNone, 1, 2, kNone}, at::kInt).view({4, 3})));
  const int64_t all[] = {0, 1, 2, 3}, last[] = {3}, empty[] = {2};
  EXPECT_EQ(tokenized.count_targets(all), 5);
  EXPECT_EQ(tokenized.count_targets(last), 2);
  EXPECT_EQ(tokenized.count_targets(empty), 0);
}

TEST(TokenizedTextsTest, IsTheSameInAFileAndSaysHowManyAreDone) {
  const ScratchFolder folder;
  Texts texts;
  for (int i = 0; i < 40'000; ++i)
    texts.push_back(std::string(static_cast<size_t>(i % 40 + 1), static_cast<char>('a' + i % 26)));
  const Texts pairs = texts.subspan(0, texts.size());
  std::vector<int64_t> done;
  const auto memory = std::make_shared<RowMemory>(0, folder.path());
  const TokenizeOptions mapped{
      .count_lost = true, .memory = memory, .on_texts = [&](int64_t count) { done.push_back(count); }};
  const auto in_file = tokenize(ByteTokenizer(), texts, pairs, /*max_length=*/50, mapped);
  const auto in_memory = tokenize(ByteTokenizer(), texts, pairs, /*max_length=*/50, {.count_lost = true});
  EXPECT_EQ(in_file.ids, in_memory.ids);
  EXPECT_EQ(in_file.token_types, in_memory.token_types);
  EXPECT_EQ(in_file.lost_tokens, in_memory.lost_tokens);
  EXPECT_GT(in_file.lost_tokens, 0);
  EXPECT_THAT(done, ElementsAre(16384, 32768, 40000));
  EXPECT_EQ(memory->bytes_in_memory(), 0);
  EXPECT_GT(memory->bytes_in_files(), 4 * in_file.count_tokens());
  Texts in_disorder(memory);
  for (const auto text : texts) in_disorder.push_back(text);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < 40'000; ++i) places.push_back(i * 7919 % 40'000);
  EXPECT_EQ(tokenize(ByteTokenizer(), in_disorder.select(places), {}, /*max_length=*/0, mapped).ids,
            tokenize(ByteTokenizer(), texts.select(places), {}, /*max_length=*/0).ids);
  const auto windows = tokenize_windows(ByteTokenizer(), texts, /*max_length=*/8, /*stride=*/0, mapped);
  EXPECT_EQ(windows.window_lengths, tokenize_windows(ByteTokenizer(), texts, 8, 0).window_lengths);
}

}  // namespace
}  // namespace mezzo::text
