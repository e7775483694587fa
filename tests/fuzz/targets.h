#pragma once

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

/// mezzo's readers of files and requests from others, one format each.
namespace mezzo::fuzz {

/// Reads the input as far as mezzo would. @param folder  holds the input, and the files that must lie
/// beside it.
/// @throws c10::Error  for an error in the input
using Read = void (*)(const std::filesystem::path& folder, std::string_view bytes);

struct Target {
  std::string_view name;
  std::string_view file;      ///< name of the input, which tells the reader its format
  std::array<Read, 5> reads;  ///< in one way, or once per task; then nullptr
  /// Writes the files that must lie beside the input. nullptr for none.
  void (*prepare)(const std::filesystem::path& folder) = nullptr;
};

std::span<const Target> targets();
/// @throws std::invalid_argument  naming the targets
const Target& find_target(std::string_view name);

/// A folder in memory for the inputs of one target.
class Folder {
 public:
  explicit Folder(const Target& target);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  /// Writes the input and reads it in every way. Returns the error of the first way, or "" if one way accepts the
  /// input.
  /// @throws std::logic_error  if that is not one line about the file; and all but a c10::Error that reading throws.
  std::string read(std::string_view bytes) const;
  /// In one way, which hangs on its length.
  std::string read_once(std::string_view bytes) const;

 private:
  std::string read_as(Read way, std::string_view bytes) const;
  std::span<const Read> ways() const;

  const Target& target_;
  std::filesystem::path path_;
};

}  // namespace mezzo::fuzz
