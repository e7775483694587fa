#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizers/added_tokens.h"

namespace mezzo::text {

/// A tokenizer's added tokens with their ids, and what finds them in a text.
class AddedVocabulary {
 public:
  AddedVocabulary() = default;

  /// @param source      the file of the vocabulary, for messages.
  /// @param added       in the order of addition; an id is -1 where no file has one.
  /// @param vocabulary  tokens and ids, ascending by id, not empty; a token that is not among them gets the next id
  ///   behind, as in tokenizers, and is put there.
  /// @param find        the id of a token of the vocabulary, or -1.
  /// @param normalize   for tokens that are found in the normalized text.
  /// @throws c10::ValueError  where the files contradict each other.
  AddedVocabulary(const std::string& source,
                  std::vector<AddedToken> added,
                  std::vector<std::pair<std::string, int32_t>>& vocabulary,
                  const std::function<int32_t(const std::string&)>& find,
                  const std::function<std::string(std::string_view)>& normalize);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedTokenMatcher& raw() const { return raw_; }
  const AddedTokenMatcher& normalized() const { return normalized_; }

 private:
  std::vector<AddedToken> tokens_;
  AddedTokenMatcher raw_, normalized_;
};

}  // namespace mezzo::text
