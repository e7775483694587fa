#pragma once

#include "mezzo/cpp20.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "mezzo/text/data/rows.h"

namespace mezzo::text {

/// Rows of texts, or of pairs of texts, with their words and other columns. Owns nothing except
/// texts.
struct TextSpans {
  Texts texts;                                           ///< the text of each row
  Texts text_pairs = {};                                 ///< the second text of each row; empty for single texts
  std::span<const std::vector<std::string>> words = {};  ///< of each text; empty unless requested
  std::span<const std::string> others = {};              ///< other columns, as in LabeledRows; may be empty

  /// `count` rows from `begin` on.
  TextSpans subspan(size_t begin, size_t count) const {
    const auto part = [&](const auto& of_all) { return of_all.empty() ? of_all : of_all.subspan(begin, count); };
    return {texts.subspan(begin, count), text_pairs.subspan(begin, count), part(words), part(others)};
  }
};

}  // namespace mezzo::text
