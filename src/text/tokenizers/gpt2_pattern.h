#pragma once

#include <cstddef>
#include <string_view>

namespace mezzo::text {

/// The regular expression by which GPT-2 splits a text into words.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// The bytes of the first word of a valid text that is not empty. It always has one: together the
/// words are the text. One look at each character, but for white space, of which the last is looked at twice.
size_t gpt2_word_length(std::string_view text);

}  // namespace mezzo::text
