#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace mezzo::text {

/// Calls `visit` for each control group of `controller` ("memory", "cpu") that this process is in, and for the groups
/// around it, from the inside out. `visit` gets the group's folder and its version of control groups, 2 or 1.
/// @param root  where proc/ and sys/ are, for tests
void for_each_control_group(const std::filesystem::path& root,
                            std::string_view controller,
                            const std::function<void(const std::filesystem::path& folder, int version)>& visit);

}  // namespace mezzo::text
