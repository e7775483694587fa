#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace mezzo::text {

/// A separate folder for one test, removed after it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "mezzo_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make " << name;
    path_ = name;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(std::string_view name, std::string_view contents) const {
    std::filesystem::remove(path_ / name);  // a new file, since some file systems flush one that is truncated
    std::ofstream(path_ / name, std::ios::binary) << contents;
    return path_ / name;
  }

  static std::string read(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::filesystem::path path_;
};

/// The message of the c10::ValueError that `function` throws, with `folder` cut out of
/// it; a test failure for none.
template <class Function>
std::string value_error(Function&& function, const ScratchFolder& folder) {
  try {
    function();
  } catch (const c10::ValueError& error) {
    std::string message = error.what_without_backtrace();
    const std::string prefix = folder.path().string() + "/";
    for (size_t at; (at = message.find(prefix)) != std::string::npos;) message.erase(at, prefix.size());
    return message;
  }
  return "(nothing was thrown)";
}

}  // namespace mezzo::text
