#include "text/tokenizers/added_tokens.h"

#include <algorithm>

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

/// The next place where a pattern may begin. BERT's own all begin with "[", so this is a memchr.
size_t AddedTokenMatcher::find_first(std::string_view text, size_t from) const {
  return first_bytes_.size() == 1 ? text.find(first_bytes_.front(), from) : text.find_first_of(first_bytes_, from);
}

bool AddedTokenMatcher::touches_word(std::string_view text, size_t begin, size_t end) {
  const auto is_word = [](char32_t c) { return (unicode::properties(c).flags & unicode::kWord) != 0; };
  if (begin > 0 && is_word(last_code_point(text.substr(0, begin)))) return true;
  const char* after = text.data() + end;
  return end < text.size() && is_word(decode_utf8(after));
}

}  // namespace mezzo::text
