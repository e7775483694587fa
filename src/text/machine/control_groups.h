#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace mezzo::text {

/// Calls `visit` for each control group that this process is in by `controller` ("memory", "cpu"), and those around it,
/// from the inside out, with its folder and the version of control groups that it is of, 2 or 1.
/// @param root  where proc/ and sys/ are, for tests
void for_each_control_group(const std::filesystem::path& root,
                            std::string_view controller,
                            const std::function<void(const std::filesystem::path& folder, int version)>& visit);

}  // namespace mezzo::text
