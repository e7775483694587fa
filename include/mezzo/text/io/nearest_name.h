#pragma once

#include "mezzo/cpp20.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo::text {

/// The candidate most similar to a misspelled `name`, if any is similar: for "Did you mean '…'?".
///
/// The distance is the number of letters to insert, delete, replace or swap with their neighbour
/// (optimal string alignment). Case is ignored, and '-' equals '_'. A candidate is similar at a
/// distance of 1, plus 1 for every three letters of `name`, up to `most`. Of equally similar
/// candidates the first is returned.
std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates,
                                        size_t most = 3);

/// " Did you mean 'nearest'?", or empty if no candidate is similar.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace mezzo::text
