#pragma once

#include "mezzo/cpp20.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "mezzo/text/data/rows.h"

namespace mezzo::text {

/// Rows of texts, or of pairs of texts. Words and other columns live elsewhere.
struct TextSpans {
  Texts texts;
  Texts text_pairs = {};                                 ///< as many, or none where texts stand alone
  std::span<const std::vector<std::string>> words = {};  ///< of each text; none where they are not wanted
  std::span<const std::string> others = {};  ///< other columns, as of LabeledRows; none where there are none

  TextSpans subspan(size_t begin, size_t count) const {
    const auto part = [&](const auto& of_all) { return of_all.empty() ? of_all : of_all.subspan(begin, count); };
    return {texts.subspan(begin, count), text_pairs.subspan(begin, count), part(words), part(others)};
  }
};

}  // namespace mezzo::text
