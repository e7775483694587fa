#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>

/// Files and folders that are still there after a power cut.
namespace mezzo::text {

/// Flushes the writes through `descriptor` to the disk. Returns 0, or why it could not (an errno). A file system that
/// knows no flushing is taken at its word.
int flush_to_disk(int descriptor);

/// Flushes the names that `folder` holds: without this a power cut could undo a rename in it.
/// @throws c10::ValueError  naming the folder.
void flush_folder(const std::filesystem::path& folder);

/// Makes `folder`, and the folders above it that are missing, for good.
/// @throws c10::ValueError  naming the folder that cannot be made.
void make_folders(const std::filesystem::path& folder);

/// Whether `path` is a name of the file that is open as `descriptor`: not, once it was
/// removed, renamed or replaced.
bool is_name_of(const std::filesystem::path& path, int descriptor);

/// Calls `take(data, size)` for a file's contents, piece by piece. @throws
/// c10::ValueError  naming the file.
void for_each_piece(const std::filesystem::path& path, const std::function<void(const void*, size_t)>& take);

}  // namespace mezzo::text
