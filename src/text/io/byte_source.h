#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace mezzo::text {

/// Bytes that come one after the other, from a file or out of a compressed one.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills the beginning of `bytes`, which are not none. Returns how many there are; 0 at the end.
  /// @throws c10::ValueError  naming the file, if it cannot be read or is damaged.
  virtual size_t read(std::span<char> bytes) = 0;
};

/// The contents of the file: decompressed, if its name ends in .gz or .zst. A file may be of several compressed parts,
/// one after the other.
/// @throws c10::ValueError  naming the file, also if this build of mezzo cannot decompress it.
std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& file);

/// Whether its name ends in .gz or .zst.
bool is_compressed(const std::filesystem::path& file);

}  // namespace mezzo::text
