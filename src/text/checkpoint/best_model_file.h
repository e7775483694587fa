#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace mezzo::text {

/// OUTPUT/model.safetensors while a run is going on. The best weights lie there and no longer in
/// memory, so the file must stay as it was written.
class BestModelFile {
 public:
  explicit BestModelFile(std::filesystem::path path) : path_(std::move(path)) {}

  enum class Look {
    kQuick,    ///< at its size, time and inode: has another process touched it?
    kThorough  ///< at its contents
  };

  const std::filesystem::path& path() const { return path_; }

  /// The file was just written.
  void written(const std::string& hash);
  /// The file should have the contents of `hash`, whatever lies there now.
  void expect(const std::string& hash) { hash_ = hash; }

  /// The problem with it; empty for none.
  std::string problem(Look look) const;

  /// Writes a copy in place of a file that is missing or damaged.
  /// @param find_copy  looks for one in the run's checkpoints.
  /// @return the problem that was found; empty if there was none.
  /// @throws c10::ValueError  without a copy.
  std::string mend(Look look, const std::function<std::optional<std::filesystem::path>()>& find_copy);

 private:
  std::filesystem::path path_;
  std::string hash_;
  struct stat as_written_{};
};

}  // namespace mezzo::text
