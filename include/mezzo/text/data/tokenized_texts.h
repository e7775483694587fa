#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "mezzo/text/tokenizers/tokenizer.h"

namespace mezzo::text {

/// Token ids of texts, and what belongs to them.
struct TokenizedTexts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<int32_t>> token_types = {};  ///< as long as the ids each; none at all where all are 0
  at::Tensor targets = {};                             ///< row i is text i's; undefined where there are none
  int64_t truncated = 0;                               ///< texts that lost their end
};

/// Encodes texts, or pairs of texts, in parallel. No targets.
/// @param text_pairs  as many as `texts`; none where these stand alone
/// @param max_length  as of Tokenizer::encode
TokenizedTexts tokenize(const Tokenizer& tokenizer,
                        std::span<const std::string> texts,
                        std::span<const std::string> text_pairs,
                        int64_t max_length);

/// Refuses a text of which the tokenizer makes no token, as one without special tokens makes of " ": a model has
/// nothing to read there.
/// @param place  names a text, by its number from 0.
/// @throws c10::ValueError  naming the first.
void check_has_tokens(const TokenizedTexts& texts, const std::function<std::string(int64_t)>& place);

}  // namespace mezzo::text
