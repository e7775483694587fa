#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/json_field.h"

namespace mezzo::text {

/// Refuses a token that is none, but somebody's text.
/// @param where  what the message begins with.
/// @throws c10::ValueError
void check_token_length(const std::string& where, std::string_view token);

/// `{"content": "[CLS]", "lstrip": false, ...}`, or only the content.
AddedToken read_added_token(const JsonField& field, bool special);

/// The tokens that the files name, with the rules of transformers for which one wins.
class TokenList {
 public:
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  /// False, and nothing is added, where a token of that content is there.
  bool add_if_new(const AddedToken& token) {
    const bool is_new = places_.emplace(token.content, tokens_.size()).second;
    if (is_new) tokens_.push_back(token);
    return is_new;
  }
  void add_or_replace(const AddedToken& token) {
    if (!add_if_new(token)) tokens_[places_.at(token.content)] = token;
  }

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> places_;  // by content
};

}  // namespace mezzo::text
