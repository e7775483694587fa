// The setting --class-weights.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mezzo::text {

constexpr std::string_view kBalanced = "balanced";

/// @param text  "NAME=WEIGHT,NAME=WEIGHT": names may hold commas and equals signs.
/// @throws c10::ValueError  that quotes an invalid weight.
std::vector<std::pair<std::string, double>> parse_class_weights(std::string_view text);

}  // namespace mezzo::text
