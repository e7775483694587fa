#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "text/tokenizers/json_field.h"

namespace mezzo::text {

/// What Replace and Split look for: the bytes that match at the start of a text that is not empty; 0: none do.
using Pattern = std::function<size_t(std::string_view)>;

/// `{"String": …}`, or `{"Regex": …}`, of which `known_regex` makes the pattern.
/// @throws c10::ValueError  naming file and key.
Pattern read_pattern(const JsonField& field, Pattern (*known_regex)(const JsonField&));

}  // namespace mezzo::text
