#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mezzo::text {

/// Refuses a `value` that is none of `known`, with a guess at what was meant: another spelling,
/// or PyTorch's word for it.
/// @param what  that has the value, for the message: "--precision".
/// @throws c10::ValueError  that lists what is known.
void check_known(std::string_view what, std::string_view value, const std::vector<std::string>& known);

}  // namespace mezzo::text
