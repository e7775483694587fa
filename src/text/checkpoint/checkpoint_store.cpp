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

layout::List list_if_possible(const fs::path& folder) {
  try {
    return layout::list(folder);
  } catch (const c10::ValueError&) {
    return {};
  }
}

/// Removes the files of a checkpoint, and its folder unless other files lie there. manifest.json goes first. A process
/// that is killed then leaves nothing that looks like a damaged checkpoint.
void remove_files(const fs::path& checkpoint) {
  fs::remove(checkpoint / layout::kManifest);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoint, ignored)) {
    if (is_file_of_checkpoint(entry.path())) {
      fs::remove(entry.path());
    }
  }
  fs::remove(checkpoint, ignored);
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
  const auto found = layout::list(folder_);
  for (const auto& [step, path] : found) {
    // Alone, it is the checkpoint of its step.
    if (layout::has_successor(path, found)) remove_files(path);
  }
  for (const auto& [step, path] : layout::list_incomplete(folder_)) {
    remove_files(path);
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
    flush_folder(aside);
    replace(aside, checkpoint.step, layout::manifest_text(manifest));
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

/// If a checkpoint of this step exists, one exists at every moment.
void CheckpointStore::replace(const fs::path& aside, int64_t step, const std::string& manifest) {
  const fs::path target = layout::path(folder_, step), replaced = layout::path_replaced(folder_, step);
  if (fs::exists(target)) {
    fs::rename(target, replaced);
    is_intact_.erase(target);
  }
  fs::rename(aside, target);
  try {
    write_file_atomically(target / layout::kManifest, manifest);
  } catch (...) {
    std::error_code ignored;
    fs::rename(target, aside, ignored);  // what failed first is what to tell
    throw;
  }
  flush_folder(folder_);
}

void CheckpointStore::prune(int64_t newest) {
  int64_t intact = 0;
  const auto found = layout::list(folder_);
  for (const auto& [step, path] : found) {
    if (step > newest || intact == keep_ || layout::has_successor(path, found)) {
      remove_files(path);
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
    intact = !read.best || read.best_weights.parent_path() == checkpoint;  // its own files hold the best weights
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

void invalidate_checkpoints(const fs::path& folder, int64_t after) {
  auto checkpoints = layout::list(folder);
  std::reverse(checkpoints.begin(), checkpoints.end());
  for (const auto& [step, path] : checkpoints) {
    if (step <= after) continue;
    fs::remove(path / layout::kManifest);
    flush_folder(path);
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
