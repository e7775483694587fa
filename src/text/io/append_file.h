#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace mezzo::text {

/// Opens `path` for writing with the further `flags` of open(2), such as O_TRUNC.
/// @throws c10::Error  that names `who`, the path and the system's reason.
int open_for_writing(std::string_view who, const std::filesystem::path& path, int flags);

/// Writes all of `bytes`, however many calls that takes, and leaves in it
/// what could not be written.
/// @throws c10::Error  that names `who`, the path and the system's reason.
void write_all(std::string_view who, const std::filesystem::path& path, int fd, std::string& bytes);

}  // namespace mezzo::text
