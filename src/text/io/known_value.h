#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mezzo::text {

/// Refuses a `value` that is not in `known`. The message guesses the value that was meant: another spelling, or
/// PyTorch's word for it.
/// @param what  that has the value, for the message: "--precision".
/// @throws c10::ValueError  that lists the known values.
void check_known(std::string_view what, std::string_view value, const std::vector<std::string>& known);

}  // namespace mezzo::text
