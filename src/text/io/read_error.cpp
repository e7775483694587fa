#include "text/io/read_error.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <vector>

#include "mezzo/text/io/nearest_name.h"
#include "text/io/json.h"

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

/// The folder of a run of `mezzo train --lora`, which leaves the adapter in OUTPUT/adapter and the merged model in
/// OUTPUT; empty if `adapter` is not of such a run.
fs::path merged_model_of(const fs::path& adapter) {
  const fs::path folder = fs::absolute(adapter / "").lexically_normal().parent_path();
  const fs::path output = folder.parent_path() / "";
  try {
    const auto run = read_json_object(output / "run.json");
    const bool is_of_lora = folder.filename() == "adapter" && run.at("settings").at("lora") != "0";
    return is_of_lora && fs::exists(output / "config.json") ? output : "";
  } catch (const std::exception&) {
    return "";
  }
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
  std::error_code error;
  const fs::file_type type = fs::symlink_status(folder / kConfig, error).type();
  if (type == fs::file_type::none) fail_to_read(folder, error.value());
  if (type == fs::file_type::not_found || fs::is_directory(folder / kConfig, error)) return;
  TORCH_CHECK_VALUE(!fs::exists(folder / "config.json", error), folder.string(), ": holds an adapter (", kConfig,
                    ") beside a model. Remove the adapter's files to use the model alone.");
  const fs::path merged = merged_model_of(folder);
  TORCH_CHECK_VALUE(false, folder.string(), ": holds a LoRA adapter (", kConfig, "), not a whole model. ",
                    merged.empty()
                        ? "In Python, peft's merge_and_unload() and save_pretrained() make a whole model of it."
                        : "Name " + merged.string() + ", which holds the merged model.");
}

void fail_to_read(const fs::path& path, int error) {
  const std::string message = c10::str(path.string(), ": cannot be read: ", std::generic_category().message(error), ".",
                                       error == ENOENT ? did_you_mean_file(path) : "");
  const bool is_no_file = error == ENOENT || error == ENOTDIR || error == EISDIR || error == ELOOP || error == EINVAL;
  TORCH_CHECK_VALUE(!is_no_file, message);
  throw UnreadableError(message);
}

}  // namespace mezzo::text
