#pragma once

#include "mezzo/cpp20.h"

#include <string>
#include <vector>

namespace mezzo::text {

struct SplitText {
  std::string text;                ///< valid UTF-8: each bad sequence became U+FFFD
  std::vector<std::string> words;  ///< each a part of it, in their order
};

/// Tells the words of a text apart as BERT does: between white space, with each punctuation mark and Chinese character
/// a word of its own.
SplitText split_words(std::string text);

/// With a space between two.
std::string join_words(const std::vector<std::string>& words);

}  // namespace mezzo::text
