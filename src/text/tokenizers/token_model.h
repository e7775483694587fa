#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mezzo::text {

/// The part of a tokenizer that turns a word into ids of its vocabulary: the section "model" of tokenizer.json.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  /// Appends the ids of a word, which is not empty and valid UTF-8, or bytes if the model reads bytes.
  virtual void append_ids(std::string_view word, std::vector<int32_t>& ids) const = 0;

  /// The tokens with their ids, which are distinct and ascend. Of equal tokens, which Unigram may have, the last
  /// counts.
  virtual std::vector<std::pair<std::string, int32_t>> vocabulary() const = 0;

  /// Writes what tokenizer.json says of the vocabulary: "vocab", and "merges" if there are some.
  virtual void write(nlohmann::json& model) const = 0;
};

}  // namespace mezzo::text
