#pragma once

#include <filesystem>
#include <string>

namespace mezzo::text {

/// " Did you mean 'FILE'?", of a file or folder that is not there, by what lies beside the first part of its path that
/// is not; nothing where nothing is near.
std::string did_you_mean_file(const std::filesystem::path& path);

/// @param error  what the system said, as in errno
/// @throws c10::ValueError  "PATH: cannot be read: why.", and which file may be meant
[[noreturn]] void fail_to_read(const std::filesystem::path& path, int error);

}  // namespace mezzo::text
