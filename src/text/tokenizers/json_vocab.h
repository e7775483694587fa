#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizers/json_field.h"

namespace mezzo::text {

/// `{"token": id, ...}`, ascending by id.
/// @throws c10::ValueError  naming file and key, where an id is none or stands twice.
std::vector<std::pair<std::string, int32_t>> read_json_vocab(const JsonField& field);

}  // namespace mezzo::text
