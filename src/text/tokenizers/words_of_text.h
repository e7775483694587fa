#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/added_tokens.h"

namespace mezzo::text {

/// The words of a text: see Tokenizer::split_words().
/// @param normalize  the tokenizer's normalizer, for a part of the text.
std::vector<std::string> words_of_text(std::string_view text,
                                       const AddedVocabulary& added,
                                       const std::function<std::string(std::string_view)>& normalize);

}  // namespace mezzo::text
