#include "text/tokenizers/added_tokens.h"

#include <c10/util/Exception.h>

#include "text/io/utf8.h"
#include "text/tokenizers/unicode.h"

namespace mezzo::text {

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& patterns)
    : tokens_(std::move(tokens)) {
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (size_t i = 0; i < patterns.size(); ++i) {
    keys.emplace_back(patterns[i], static_cast<int32_t>(i));
    if (first_bytes_.find(patterns[i].front()) == std::string::npos) first_bytes_.push_back(patterns[i].front());
  }
  trie_ = DoubleArrayTrie(std::move(keys));
}

/// The next possible start of a pattern. BERT's own all begin with "[", so this is a memchr.
size_t AddedTokenMatcher::find_first(std::string_view text, size_t from) const {
  return first_bytes_.size() == 1 ? text.find(first_bytes_.front(), from) : text.find_first_of(first_bytes_, from);
}

bool AddedTokenMatcher::touches_word(std::string_view text, size_t begin, size_t end) {
  const auto is_word = [](char32_t c) { return (unicode::properties(c).flags & unicode::kWord) != 0; };
  if (begin > 0 && is_word(last_code_point(text.substr(0, begin)))) return true;
  const char* after = text.data() + end;
  return end < text.size() && is_word(decode_utf8(after));
}

void check_token_length(const std::string& where, std::string_view token) {
  constexpr size_t kMaxTokenBytes = 1000;  // looking for tokens takes time in proportion to the longest
  TORCH_CHECK_VALUE(token.size() <= kMaxTokenBytes, where, ": a token of ", token.size(), " bytes; at most ",
                    kMaxTokenBytes, " make one. Is this the vocabulary of a BERT model?");
}

AddedToken read_added_token(const JsonField& field, bool special) {
  AddedToken token;
  token.special = special;
  const bool is_content = field.value().is_string();
  token.content = (is_content ? field : field["content"]).as_string();
  check_token_length(field.file() + ": " + field.name(), token.content);
  if (is_content) {
    token.normalized = !special;
    return token;
  }
  token.special = field.bool_or("special", special);
  token.single_word = field.bool_or("single_word", false);
  token.lstrip = field.bool_or("lstrip", false);
  token.rstrip = field.bool_or("rstrip", false);
  token.normalized = field.bool_or("normalized", !token.special);
  return token;
}

namespace {

void assign_ids(const std::string& source,
                std::vector<std::pair<std::string, int32_t>>& vocabulary,
                const std::function<int32_t(const std::string&)>& find,
                std::vector<AddedToken>& tokens) {
  const auto vocab_count = static_cast<int32_t>(vocabulary.size());
  const int32_t largest_id = vocabulary.back().second;
  int32_t largest_added = -1;
  for (AddedToken& token : tokens) {
    int32_t id = find(token.content);
    if (id < 0) {
      id = std::max(largest_added + 1, vocab_count);
      TORCH_CHECK_VALUE(id > largest_id, source, ": the added token ", quoted_json(token.content), " would get the id ",
                        id, ", the size of the vocabulary, but its ids go up to ", largest_id,
                        ". Number the tokens from 0 without gaps (in vocab.txt: no line twice)");
      vocabulary.emplace_back(token.content, id);
    }
    TORCH_CHECK_VALUE(token.id < 0 || token.id == id, source, ": the added token ", quoted_json(token.content),
                      " is listed with the id ", token.id, " but its place in the vocabulary is ", id,
                      ". List each added token once. Order new tokens by id, without a gap after the vocabulary");
    token.id = id;
    largest_added = std::max(largest_added, id);
  }
}

}  // namespace

AddedVocabulary::AddedVocabulary(const std::string& source,
                                 std::vector<AddedToken> added,
                                 std::vector<std::pair<std::string, int32_t>>& vocabulary,
                                 const std::function<int32_t(const std::string&)>& find,
                                 const std::function<std::string(std::string_view)>& normalize)
    : tokens_(std::move(added)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  assign_ids(source, vocabulary, find, tokens_);
  std::vector<AddedToken> raw, normalized;
  std::vector<std::string> raw_patterns, normalized_patterns;
  std::unordered_map<std::string, std::string> contents;
  for (const AddedToken& token : tokens_) {
    if (!token.normalized) {
      raw.push_back(token);
      raw_patterns.push_back(token.content);
      continue;
    }
    std::string pattern = normalize(token.content);
    TORCH_CHECK_VALUE(!pattern.empty(), source, ": the added token ", quoted_json(token.content),
                      " is empty once normalized; set its \"normalized\" to false");
    check_token_length(source + ": the added token " + quoted_json(token.content) + ", normalized", pattern);
    const auto [same, is_new] = contents.emplace(pattern, token.content);
    // Hugging Face then finds the one or the other, by chance.
    TORCH_CHECK_VALUE(is_new, source, ": the added tokens ", quoted_json(same->second), " and ",
                      quoted_json(token.content),
                      " are equal once normalized; set \"normalized\" to false for one of them");
    normalized.push_back(token);
    normalized_patterns.push_back(std::move(pattern));
  }
  raw_ = AddedTokenMatcher(std::move(raw), raw_patterns);
  normalized_ = AddedTokenMatcher(std::move(normalized), normalized_patterns);
}

}  // namespace mezzo::text
