#include "text/io/read_error.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <string_view>
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
/// OUTPUT. Empty if `adapter` is not from such a run.
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

std::string why_no_weights(const std::set<std::string>& files, const std::string& hub_name) {
  const std::string none = "has no model.safetensors";
  const auto has = [&](std::string_view ending) {
    return std::ranges::any_of(files, [&](const std::string& name) { return name.ends_with(ending); });
  };
  std::string pickle;
  for (const std::string& name : files) {
    const bool is_pickle = name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
    if (!is_pickle || name == "training_args.bin" || name.find('/') != name.npos) continue;
    if (name.starts_with("pytorch_model")) pickle = "pytorch_model*.bin";  // one, or several parts
    if (pickle.empty()) pickle = name;
  }
  if (!pickle.empty()) {
    const std::string fetch =
        hub_name.empty() ? "" : fmt::format("Download it: hf download {} --local-dir DIR. ", hub_name);
    return fmt::format(
        "{}, only a pickle such as pytorch_model.bin, which may run code. {}Convert it in its folder: python -c "
        "\"import glob, torch, safetensors.torch as s; s.save_file({{k: v.clone().contiguous() for f in "
        "glob.glob('{}') for k, v in torch.load(f, 'cpu', weights_only=True).items()}}, 'model.safetensors', "
        "{{'format': 'pt'}})\"",
        none, fetch, pickle);
  }
  for (const auto& [ending, program] : {std::pair{".h5", "TensorFlow"}, {".msgpack", "Flax"}}) {
    if (has(ending)) {
      return none + ", only weights of " + program + " (*" + ending +
             "). Use a model that has safetensors, or convert it with transformers 4: "
             "from_pretrained(FOLDER, from_" +
             (has(".h5") ? "tf" : "flax") + "=True).save_pretrained(FOLDER)";
    }
  }
  for (const auto& [ending, program] : {std::pair{".gguf", "llama.cpp"}, {".onnx", "ONNX"}}) {
    if (has(ending))
      return none + ", only a file for " + program + " (*" + ending + "). Use the model it was made from";
  }
  return none + ", the file of its weights. Name a model that transformers or mezzo saved";
}

void fail_to_read(const fs::path& path, int error) {
  const std::string message = c10::str(path.string(), ": cannot be read: ", std::generic_category().message(error), ".",
                                       error == ENOENT ? did_you_mean_file(path) : "");
  const bool is_no_file = error == ENOENT || error == ENOTDIR || error == EISDIR || error == ELOOP || error == EINVAL;
  TORCH_CHECK_VALUE(!is_no_file, message);
  throw UnreadableError(message);
}

}  // namespace mezzo::text
