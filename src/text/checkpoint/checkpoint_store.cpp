#include "text/checkpoint/checkpoint_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/error_message.h"
#include "mezzo/text/io/safetensors.h"
#include "text/checkpoint/checkpoint_format.h"
#include "text/io/content_hash.h"
#include "text/io/durable_files.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
namespace layout = checkpoint_format;

bool is_file_of_checkpoint(const fs::path& file) {
  for (const char* name : layout::kFiles) {
    if (file.filename() == name || is_leftover_of(name, file)) {
      return true;
    }
  }
  return false;
}

std::vector<std::pair<int64_t, fs::path>> list_if_possible(const fs::path& folder) {
  try {
    return layout::list(folder);
  } catch (const c10::ValueError&) {
    return {};
  }
}

bool holds_files_of_others(const fs::path& checkpoint) {
  const fs::directory_iterator files(checkpoint);
  return !std::all_of(begin(files), end(files), [](const auto& file) { return is_file_of_checkpoint(file.path()); });
}

/// Removes the files of a checkpoint, and its folder; not, where somebody laid a
/// file of his own beside them.
void remove_files(const fs::path& checkpoint) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoint, ignored)) {
    if (is_file_of_checkpoint(entry.path())) {
      fs::remove(entry.path());
    }
  }
  fs::remove(checkpoint, ignored);
}

void move_files_of_others(const fs::path& checkpoint, const fs::path& target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (!is_file_of_checkpoint(entry.path())) {
      files.push_back(entry.path());
    }
  }
  for (const fs::path& file : files) {
    fs::rename(file, target / file.filename());
  }
}

}  // namespace

void CheckpointStore::goes_on_from(const Checkpoint& checkpoint) {
  // Links are made within the run's own checkpoints alone.
  const fs::path own = layout::path(folder_, checkpoint.step);
  if (checkpoint.best && fs::exists(own) && checkpoint.best_weights.parent_path() == own) {
    best_hash_ = checkpoint.best->hash;
    best_weights_ = checkpoint.best_weights;
  }
}

void CheckpointStore::tidy() const {
  for (const auto& [step, path] : layout::list(folder_)) {
    // Alone, it is the checkpoint of its step.
    if (layout::is_replaced(path) && fs::exists(layout::path(folder_, step))) {
      remove_files(path);
    }
  }
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder_, none)) {
    if (layout::is_aside(entry.path())) {
      remove_files(entry.path());
    }
  }
}

std::string CheckpointStore::save(const Checkpoint& checkpoint, const fs::path& best_model) {
  if (fs::create_directory(folder_)) {  // and none above it: the run's own may have been taken away
    flush_folder(folder_.parent_path());
  }
  const fs::path aside = layout::path_aside(folder_, checkpoint.step);
  layout::Manifest manifest{{}, checkpoint.environment};
  const auto note = [&](const char* name, const std::string& hash) {
    manifest.files[name] = {static_cast<int64_t>(fs::file_size(aside / name)), hash};
  };
  try {
    fs::create_directory(aside);
    for (const layout::TensorFile& file : layout::kTensorFiles) {
      const NamedTensors& tensors = checkpoint.*file.tensors;
      if (tensors.empty() && !file.is_required) continue;
      note(file.name, save_safetensors(aside / file.name, tensors, {{"format", "pt"}}));
    }
    if (checkpoint.best && checkpoint.best->hash != manifest.files[layout::kWeights].hash) {
      put_best(checkpoint.best->hash, best_model, aside / layout::kBest);
      note(layout::kBest, checkpoint.best->hash);
    }
    note(layout::kState, write_file_atomically(aside / layout::kState, layout::state_text(checkpoint)));
    write_file_atomically(aside / layout::kManifest, layout::manifest_text(manifest));
    flush_folder(aside);
    replace(aside, checkpoint.step);
  } catch (...) {
    try {
      remove_files(aside);
    } catch (const fs::filesystem_error&) {  // the next start removes it; what failed first is what to tell
    }
    throw;
  }
  const fs::path saved = layout::path(folder_, checkpoint.step);
  is_intact_[saved] = true;
  if (checkpoint.best) {
    best_hash_ = checkpoint.best->hash;
    best_weights_ = saved / (manifest.files.contains(layout::kBest) ? layout::kBest : layout::kWeights);
  }
  try {
    prune(checkpoint.step);
  } catch (const std::exception& error) {
    return "the checkpoint of step " + std::to_string(checkpoint.step) +
           " is saved, but an earlier one could not be removed: " + message_of(error);
  }
  return "";
}

void CheckpointStore::put_best(const std::string& hash, const fs::path& best_model, const fs::path& target) {
  std::error_code error;
  if (hash == best_hash_) {
    fs::create_hard_link(best_weights_, target, error);
    if (!error && hash_of_file(target) == hash) {
      return;
    }
  }
  fs::remove(target, error);  // a link to a damaged file
  copy_intact_file(best_model, target, hash);
}

/// There is no moment without a checkpoint of this step, where there was one.
void CheckpointStore::replace(const fs::path& aside, int64_t step) {
  const fs::path target = layout::path(folder_, step), replaced = layout::path_replaced(folder_, step);
  if (fs::exists(target)) {
    fs::rename(target, replaced);
    is_intact_.erase(target);
  }
  fs::rename(aside, target);
  flush_folder(folder_);
}

/// Killed in the middle, it leaves no checkpoint that would pass for a damaged one, unless a file
/// of somebody else keeps the folder where it is.
void CheckpointStore::remove(const fs::path& checkpoint, int64_t step) const {
  if (holds_files_of_others(checkpoint)) {
    remove_files(checkpoint);
    return;
  }
  const fs::path aside = layout::path_aside(folder_, step);
  fs::rename(checkpoint, aside);
  remove_files(aside);
}

void CheckpointStore::prune(int64_t newest) {
  int64_t intact = 0;
  for (const auto& [step, path] : layout::list(folder_)) {
    const bool is_replaced = layout::is_replaced(path) && fs::exists(layout::path(folder_, step));
    if (step > newest || intact == keep_ || is_replaced) {
      remove(path, step);
    } else if (is_intact(path)) {
      ++intact;
    }
  }
}

bool CheckpointStore::is_intact(const fs::path& checkpoint) {
  const auto known = is_intact_.find(checkpoint);
  if (known != is_intact_.end()) {
    return known->second;
  }
  bool& intact = is_intact_[checkpoint];
  try {
    const Checkpoint read = layout::read_and_verify(checkpoint);
    intact = !read.best || read.best_weights.parent_path() == checkpoint;  // by its own files
  } catch (const std::exception&) {
    intact = false;
  }
  return intact;
}

std::optional<fs::path> CheckpointStore::find_weights(const std::string& hash) const {
  for (const auto& [step, path] : list_if_possible(folder_)) {
    try {
      for (const auto& [name, noted] : layout::read_manifest(path).files) {
        if (noted.hash == hash && hash_of_file(path / name) == hash) {
          return path / name;
        }
      }
    } catch (const std::exception&) {
      continue;  // damaged: the next one may do
    }
  }
  return std::nullopt;
}

bool CheckpointStore::has(int64_t step) {
  const fs::path path = layout::path(folder_, step);
  return fs::exists(path) && is_intact(path);
}

bool CheckpointStore::has_any() {
  const auto checkpoints = list_if_possible(folder_);
  return std::any_of(checkpoints.begin(), checkpoints.end(),
                     [this](const auto& checkpoint) { return is_intact(checkpoint.second); });
}

void set_checkpoints_aside(const fs::path& folder, int64_t after) {
  auto checkpoints = layout::list(folder);
  std::reverse(checkpoints.begin(), checkpoints.end());
  for (const auto& [step, path] : checkpoints) {
    if (step <= after) {
      continue;
    }
    const fs::path aside = layout::path_aside(folder, step);
    fs::rename(path, aside);
    if (holds_files_of_others(aside)) {
      fs::create_directory(path);
      move_files_of_others(aside, path);
    }
  }
  if (!checkpoints.empty()) {
    flush_folder(folder);
  }
}

void remove_checkpoints(const fs::path& folder) {
  for (const auto& [step, path] : layout::list(folder)) {
    remove_files(path);
  }
  CheckpointStore(folder, /*keep=*/1).tidy();
  std::error_code ignored;
  fs::remove(folder, ignored);
}

void copy_intact_file(const fs::path& source, const fs::path& target, const std::string& hash) {
  ContentHash copied;
  AtomicFile file(target);
  for_each_piece(source, [&](const void* data, size_t size) {
    copied.update(data, size);
    file.write(data, size);
  });
  TORCH_CHECK_VALUE(copied.hex() == hash, source.string(),
                    ": is damaged: its hash is not the one noted when it was written");
  file.commit();
}

}  // namespace mezzo::text
