#include "text/tokenizers/added_vocabulary.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>

#include "text/tokenizers/added_token_list.h"
#include "text/tokenizers/json_field.h"

namespace mezzo::text {

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
                        id, ", since the vocabulary has that many tokens, but its ids go up to ", largest_id,
                        "; give its tokens the ids from 0 on without gaps (in vocab.txt: no line twice)");
      vocabulary.emplace_back(token.content, id);
    }
    TORCH_CHECK_VALUE(token.id < 0 || token.id == id, source, ": the added token ", quoted_json(token.content),
                      " is listed with the id ", token.id, " but its place in the vocabulary is ", id,
                      "; list each added token once, those that the vocabulary lacks in the order of their ids, which "
                      "go on without a gap where the vocabulary ends");
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
