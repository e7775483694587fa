#pragma once

#include <cstddef>
#include <string_view>

namespace mezzo::text {

/// The bytes of the extended grapheme cluster (Unicode Annex 29) that a valid text, which is not empty, starts with.
size_t grapheme_length(std::string_view text);

}  // namespace mezzo::text
