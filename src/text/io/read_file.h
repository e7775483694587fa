#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace mezzo::text {

/// The whole file, or all that a pipe brings.
/// @throws c10::ValueError  naming the file, when it cannot be read, has more than `max_bytes` or is a pointer of
///   Git LFS.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = UINT64_MAX);

/// Refuses what `git clone` leaves in a large file's place where Git LFS is not installed.
/// @param name  of the file, for the message.
/// @throws c10::ValueError
void check_no_lfs_pointer(const std::string& name, std::string_view bytes);

/// Refuses a text in UTF-16 or UTF-32, with or without a byte order mark.
/// @param bytes  from the beginning of the file. A zero byte among the first 16 is refused.
/// @throws c10::ValueError  naming the file.
void check_is_utf8_text(const std::string& name, std::string_view bytes);

}  // namespace mezzo::text
