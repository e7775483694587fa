#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizers/json_field.h"

struct re_pattern_buffer;  // a regular expression of Oniguruma

namespace mezzo::text {

/// The regular expression by which GPT-2 splits a text into words.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The bytes of the first word of a valid text that is not empty. It always has one: together the
/// words are the text. One look at each character, except white space, of which the last is looked at twice.
size_t gpt2_word_length(std::string_view text);

/// The matches that Replace and Split look for. Thread-safe.
class Pattern {
 public:
  /// The number of bytes that match at the start of a text that is not empty; 0: none.
  using MatchAtStart = size_t (*)(std::string_view text);
  explicit Pattern(MatchAtStart match) : match_(match) {}

  /// Reads `{"String": …}` or `{"Regex": …}`, a regular expression of Oniguruma. The expressions of common tokenizers
  /// have special, faster code.
  /// @throws c10::ValueError  naming file and key
  explicit Pattern(const JsonField& field);

  /// Calls `use` with begin and end of each match, in order, until it returns false. A match may be empty, but not
  /// directly behind another one.
  /// @param text  valid UTF-8
  /// @throws c10::ValueError  if a search takes more than a million steps and 100 for each byte. Also if all searches
  ///   take more than 0.2 s and 10 µs for each byte.
  void for_each_match(std::string_view text, const std::function<bool(size_t begin, size_t end)>& use) const;

 private:
  MatchAtStart match_ = nullptr;
  std::string string_;
  std::shared_ptr<const re_pattern_buffer> regex_;
  std::string where_;  // of the regular expression, for messages
};

}  // namespace mezzo::text
