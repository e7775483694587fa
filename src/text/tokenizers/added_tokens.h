#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizers/double_array_trie.h"
#include "text/tokenizers/json_field.h"
#include "text/tokenizers/white_space.h"

namespace mezzo::text {

/// A token that is found in the text itself, before WordPiece: an entry of
/// "added_tokens" in tokenizer.json.
struct AddedToken {
  std::string content;
  bool single_word = false;  // found only if no word character touches it
  bool lstrip = false;       // takes the white space on its left with it
  bool rstrip = false;       // and on its right
  bool normalized = true;    // found in the normalized text
  bool special = false;
  int32_t id = -1;

  bool operator==(const AddedToken&) const = default;
};

/// A part of a text: an added token, or text between them (`id` is -1).
struct TextSplit {
  std::string_view text;
  int32_t id = -1;
};

/// Finds added tokens: the leftmost, and of several with one start the longest, without overlap.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;

  /// @param patterns  what to look for, `patterns[i]` for `tokens[i]`; not
  ///   empty, and all different.
  AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& patterns);

  bool empty() const { return tokens_.empty(); }

  /// The parts of a valid UTF-8 text, in order.
  template <class Visitor>
  void split(std::string_view text, const Visitor& visit) const {
    if (tokens_.empty()) {
      if (!text.empty()) visit(TextSplit{text});
      return;
    }
    size_t done = 0;       // what lies before has been visited
    size_t space_end = 0;  // of the white space that a token took last: no part of it is looked at twice
    for (size_t i = find_first(text, 0); i < text.size(); i = find_first(text, i)) {
      const DoubleArrayTrie::Match match = trie_.longest_prefix(0, text.substr(i));
      if (match.id < 0) {
        ++i;
        continue;
      }
      const AddedToken& token = tokens_[match.id];
      size_t begin = i;
      size_t end = i + match.length;
      i = end;
      if (token.single_word && touches_word(text, begin, end)) continue;
      if (token.lstrip) begin = begin > done ? done + trim_end(text.substr(done, begin - done)).size() : done;
      if (token.rstrip)
        end = space_end = end < space_end ? space_end : text.size() - trim_begin(text.substr(end)).size();
      if (begin >= end) continue;  // white space that the token before has taken
      if (done < begin) visit(TextSplit{text.substr(done, begin - done)});
      visit(TextSplit{text.substr(begin, end - begin), token.id});
      done = end;
    }
    if (done < text.size()) visit(TextSplit{text.substr(done)});
  }

 private:
  size_t find_first(std::string_view text, size_t from) const;
  static bool touches_word(std::string_view text, size_t begin, size_t end);

  std::vector<AddedToken> tokens_;
  DoubleArrayTrie trie_;     // ids are indices into tokens_
  std::string first_bytes_;  // the bytes that patterns start with
};

/// Refuses a token that is none, but somebody's text.
/// @param where  the beginning of the message.
/// @throws c10::ValueError
void check_token_length(const std::string& where, std::string_view token);

/// `{"content": "[CLS]", "lstrip": false, ...}`, or only the content.
AddedToken read_added_token(const JsonField& field, bool special);

/// The tokens that the files name, with the rules of transformers for which one wins.
class TokenList {
 public:
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  /// False, and nothing is added, if a token of that content is there.
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

/// A tokenizer's added tokens with their ids, and what finds them in a text.
class AddedVocabulary {
 public:
  AddedVocabulary() = default;

  /// @param source      the file of the vocabulary, for messages.
  /// @param added       in the order of addition; an id is -1 if no file has one.
  /// @param vocabulary  tokens and ids, ascending by id, not empty. A token that is not among them gets the next id, as
  ///   in tokenizers, and is appended.
  /// @param find        the id of a token of the vocabulary, or -1.
  /// @param normalize   for tokens that are found in the normalized text.
  /// @throws c10::ValueError  if the files contradict each other.
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
