#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "mezzo/text/checkpoint/checkpoint.h"

namespace mezzo::text {

/// Writes the checkpoints of a run, which no other process may write meanwhile. A checkpoint is complete or absent at
/// every moment: written aside, flushed and renamed. Then comes manifest.json, with a hash of each file: a folder
/// without it does not count.
class CheckpointStore {
 public:
  /// @param keep  checkpoints that stay: damaged ones do not count.
  CheckpointStore(std::filesystem::path folder, int64_t keep) : folder_(std::move(folder)), keep_(keep) {}

  /// Later checkpoints may share the best weights of `checkpoint`, if it lies in this folder.
  void goes_on_from(const Checkpoint& checkpoint);

  /// Removes what processes that were killed left half written.
  void tidy() const;

  /// Writes folder/step-N in place of one that may be there. Then removes checkpoints of later steps, and all but the
  /// newest `keep`. The later ones were damaged when the run went on from an earlier one.
  /// @param best_model  model.safetensors of `checkpoint.best`; copied, unless the checkpoint has
  ///     that file or an earlier one's copy can be hard-linked
  /// @return what could not be removed once the checkpoint was complete; empty: all was.
  /// @throws std::exception  that names the file. Nothing is left of the attempt then, and earlier
  ///     checkpoints stay.
  std::string save(const Checkpoint& checkpoint, const std::filesystem::path& best_model);

  /// Whether there is an intact checkpoint, of that step or of any.
  bool has(int64_t step);
  bool has_any();

  /// A file of a checkpoint with the contents of `hash`.
  std::optional<std::filesystem::path> find_weights(const std::string& hash) const;

 private:
  void put_best(const std::string& hash, const std::filesystem::path& best_model, const std::filesystem::path& target);
  void replace(const std::filesystem::path& aside, int64_t step, const std::string& manifest);
  void prune(int64_t newest);
  bool is_intact(const std::filesystem::path& checkpoint);

  std::filesystem::path folder_;
  int64_t keep_;
  std::map<std::filesystem::path, bool> is_intact_;  // as far as known
  std::string best_hash_;                            // of best_weights_
  std::filesystem::path best_weights_;
};

/// Removes manifest.json of the checkpoints of later steps than `after`, oldest first. They no longer count, and
/// CheckpointStore::tidy removes the rest.
void invalidate_checkpoints(const std::filesystem::path& folder, int64_t after);

/// Removes the files of folder/step-* that checkpoints consist of, and `folder`
/// where nothing else lies in it.
void remove_checkpoints(const std::filesystem::path& folder);

/// Writes `source` to `target`, checking its contents on the way. @throws c10::ValueError  if it is damaged.
void copy_intact_file(const std::filesystem::path& source,
                      const std::filesystem::path& target,
                      const std::string& hash);

}  // namespace mezzo::text
