#pragma once

#include <c10/util/Exception.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>

namespace mezzo::text {

/// " Did you mean 'FILE'?", for a file or folder that does not exist. Compares the first missing part of its path with
/// the names beside it; empty if none is near.
std::string did_you_mean_file(const std::filesystem::path& path);

/// Refuses a model folder with a LoRA adapter, as PEFT saves one: transformers adds the adapter to its base model, and
/// mezzo reads whole models.
/// @throws c10::ValueError  naming the folder.
void refuse_adapter(const std::filesystem::path& folder);

/// Names the files that a folder without safetensors has instead, and says how to convert them.
/// @param files  names of the folder, or of the model on the hub.
/// @param hub_name  of that model; empty for a folder.
std::string why_no_weights(const std::set<std::string>& files, const std::string& hub_name = "");

/// A file is there, but cannot be read now. The cause may be the disk, a permission, or this version, which does not
/// know its format. It may be whole for all that.
class UnreadableError : public c10::ValueError {
 public:
  explicit UnreadableError(std::string message) : ValueError({__func__, __FILE__, __LINE__}, std::move(message)) {}
};

/// @param error  the system's error, as in errno
/// @throws UnreadableError  "PATH: cannot be read: why."
/// @throws c10::ValueError  the same message with a similar file name, if the path does not exist or is not a file
[[noreturn]] void fail_to_read(const std::filesystem::path& path, int error);

}  // namespace mezzo::text
