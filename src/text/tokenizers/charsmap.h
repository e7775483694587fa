#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/normalizer.h"

namespace mezzo::text {

/// The normalizer of a sentencepiece model, as tokenizers' `Precompiled` reads it: a double array
/// of strings, each with the string that takes its place.
class Charsmap : public Normalizer {
 public:
  /// @param bytes  the array's size in bytes (little endian), the array, and the replacements,
  ///     each ended by a zero byte.
  /// @param where  the beginning of an error message.
  /// @throws c10::ValueError  if the sizes do not fit, or the replacements are not UTF-8.
  Charsmap(std::string_view bytes, const std::string& where);

  void normalize(NormalizedText& text) const override;

 private:
  /// The place of the replacement of the shortest key that `text` starts with; -1: none.
  int64_t find(std::string_view text) const;
  std::string_view replacement(int64_t at) const;
  bool append_replacement(std::string_view part, std::string& out) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
  std::array<int64_t, 128> ascii_;  // what `find` says of single characters
};

}  // namespace mezzo::text
