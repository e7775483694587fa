#pragma once

#include <filesystem>

namespace mezzo::text {

/// Flushes a folder, which holds the names of its files: without this a power cut could undo a rename.
/// @return errno, 0 on success.
int sync_folder(const std::filesystem::path& folder);

}  // namespace mezzo::text
