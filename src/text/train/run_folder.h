#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/train/train_config.h"
#include "text/train/run_lock.h"

namespace mezzo::text {

/// What a run writes into its folder, beside run.json, tensorboard/ and checkpoints/.
inline constexpr std::array kRunFiles = {"metrics.jsonl", "model.safetensors",     "config.json",
                                         "vocab.txt",     "tokenizer_config.json", "report.html"};

/// The folder of a run. Nothing in it is changed before it is certain that the run may write there, and nothing is ever
/// removed that no run of mezzo wrote: run.json tells.
class RunFolder {
 public:
  /// Locks the folder, where there is one.
  explicit RunFolder(const TrainConfig& config);

  /// Checks that the run may begin there, or go on from `resumed`. Changes nothing.
  /// @throws c10::ValueError  that says what lies there.
  void check(const std::optional<Checkpoint>& resumed, const RunIdentity& identity);

  /// After the check: makes the folder, where there is none yet.
  void make(const std::optional<Checkpoint>& resumed, const RunIdentity& identity);

  /// Once run.json says whose folder it is: removes what a killed process left half written, the checkpoints of later
  /// steps than the one that was asked for and, where --overwrite was given, the files of the run whose place is taken.
  /// One that ended before its first checkpoint is kept in a folder.
  void clear();

  /// After make(): whether the folder is still where it was made.
  bool is_there() const { return lock_->is_there(); }

  /// The steps of checkpoints later than the one that was asked for, which clear() removes; newest first.
  const std::vector<int64_t>& left_behind() const { return left_behind_; }

  /// The run's name in run.json and in its checkpoints.
  const std::string& run() const { return run_; }

  /// Where clear() put what a run without a checkpoint had left; empty for nowhere.
  const std::filesystem::path& kept() const { return kept_; }

 private:
  void check_new(const RunIdentity& identity);
  std::string foreign_file() const;
  void keep_records();

  const TrainConfig& config_;
  std::optional<RunLock> lock_;
  std::string run_;
  bool replaces_ = false;      // another run
  bool begins_again_ = false;  // one that ended before its first checkpoint
  std::vector<int64_t> left_behind_;
  std::filesystem::path kept_;
};

/// The checkpoint that `config.resume` asks for; "auto" without any is none.
/// @param warns  of damaged ones that are passed over: one of the ranks.
/// @throws c10::ValueError  where there are some and none is intact, naming what is wrong with each.
std::optional<Checkpoint> find_checkpoint(const TrainConfig& config, bool warns);

}  // namespace mezzo::text
