#pragma once

#include <string>

namespace mezzo::text {

enum class NormalizationForm { kNfd, kNfkd, kNfc, kNfkc };

/// Puts a valid UTF-8 text into a normalization form of Unicode.
void to_normalization_form(std::string& text, NormalizationForm form);

}  // namespace mezzo::text
