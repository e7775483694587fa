#pragma once

#include <c10/util/Exception.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>

namespace mezzo::text {

/// " Did you mean 'FILE'?", of a file or folder that is not there, by what lies beside the first part of its path that
/// is not; nothing where nothing is near.
std::string did_you_mean_file(const std::filesystem::path& path);

/// Refuses a model folder with a LoRA adapter, as PEFT saves one: transformers adds the adapter to its base model, and
/// mezzo reads whole models.
/// @throws c10::ValueError  naming the folder.
void refuse_adapter(const std::filesystem::path& folder);

/// Says what a folder without safetensors has in its place, and how to convert that.
/// @param files  names of the folder, or of the model on the hub.
/// @param hub_name  of that model; empty for a folder.
std::string why_no_weights(const std::set<std::string>& files, const std::string& hub_name = "");

/// A file is there, and cannot be read as things are: what failed may be the disk, a permission, or this version, which
/// does not know its format. It may be whole for all that.
class UnreadableError : public c10::ValueError {
 public:
  explicit UnreadableError(std::string message) : ValueError({__func__, __FILE__, __LINE__}, std::move(message)) {}
};

/// @param error  what the system said, as in errno
/// @throws UnreadableError  "PATH: cannot be read: why."
/// @throws c10::ValueError  likewise, and which file may be meant, where nothing is there, or no file
[[noreturn]] void fail_to_read(const std::filesystem::path& path, int error);

}  // namespace mezzo::text
