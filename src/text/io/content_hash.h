#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace mezzo::text {

/// XXH3 in 128 bits of bytes that come piece by piece. Finds accidents, not attacks.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();

  void update(const void* data, size_t size);
  /// 32 hexadecimal digits, of all bytes so far.
  std::string hex() const;
  /// The low 64 bits of hex().
  uint64_t low64() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The hash of a file's contents. @throws c10::ValueError  naming the file, when it cannot be read.
std::string hash_of_file(const std::filesystem::path& path);

}  // namespace mezzo::text
