#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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

/// Encodes `texts`, in parallel. No targets.
/// @param max_length  as of Tokenizer::encode.
TokenizedTexts tokenize(const Tokenizer& tokenizer, std::span<const std::string> texts, int64_t max_length);

}  // namespace mezzo::text
