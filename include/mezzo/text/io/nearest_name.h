#pragma once

#include "mezzo/cpp20.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mezzo::text {

/// The candidate that a misspelled `name` most likely means, if any is
/// near: for "Did you mean '…'?".
///
/// Nearness is the number of letters to insert, delete, replace or swap with their neighbour
/// (optimal string alignment); upper and lower case are the same, and so are '-' and '_'. One edit
/// is near, and one more for every three letters of `name`, up to `most`. Of equally near
/// candidates the first wins.
std::optional<std::string> nearest_name(std::string_view name,
                                        std::span<const std::string> candidates,
                                        size_t most = 3);

/// " Did you mean 'nearest'?", or nothing where no candidate is near.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);

}  // namespace mezzo::text
