#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace mezzo::text {

/// The whole file, or all that a pipe brings.
/// @throws c10::ValueError  naming the file, when it cannot be read or has more than `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = UINT64_MAX);

}  // namespace mezzo::text
