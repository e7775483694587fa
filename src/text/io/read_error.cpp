#include "text/io/read_error.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "mezzo/text/io/nearest_name.h"

namespace mezzo::text {
namespace fs = std::filesystem;

namespace {

constexpr size_t kMostNames = 10'000;  // of a folder that are looked at

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end && names.size() < kMostNames;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

/// A link whose target is missing is there.
bool is_there_at_all(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

}  // namespace

std::string did_you_mean_file(const fs::path& path) {
  fs::path before, near;
  for (const fs::path& part : path) {
    near = before / part;
    if (!is_there_at_all(near)) {
      const auto names = names_in(before.empty() ? "." : before);
      const auto nearest = nearest_name(part.string(), names);
      return nearest ? " Did you mean '" + (before / *nearest).string() + "'?" : "";
    }
    before = near;
  }
  return "";
}

void refuse_adapter(const fs::path& folder) {
  constexpr const char* kConfig = "adapter_config.json";
  if (!is_there_at_all(folder / kConfig)) return;
  std::error_code error;
  TORCH_CHECK_VALUE(!fs::exists(folder / "config.json", error), folder.string(), ": holds an adapter (", kConfig,
                    ") beside a model. Remove the adapter's files to use the model alone.");
  const fs::path whole = (fs::absolute(folder) / "..").lexically_normal();
  TORCH_CHECK_VALUE(false, folder.string(), ": holds a LoRA adapter (", kConfig, "), not a whole model. ",
                    fs::exists(whole / "config.json", error)  // as beside OUTPUT/adapter of mezzo train
                        ? "Name " + whole.string() + ", which holds a model."
                        : "In Python, peft's merge_and_unload() and save_pretrained() make a whole model of it.");
}

void fail_to_read(const fs::path& path, int error) {
  const std::string message = c10::str(path.string(), ": cannot be read: ", std::generic_category().message(error), ".",
                                       error == ENOENT ? did_you_mean_file(path) : "");
  const bool is_no_file = error == ENOENT || error == ENOTDIR || error == EISDIR || error == ELOOP || error == EINVAL;
  TORCH_CHECK_VALUE(!is_no_file, message);
  throw UnreadableError(message);
}

}  // namespace mezzo::text
