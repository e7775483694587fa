#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/setup/train_config.h"
#include "text/run/run_lock.h"
#include "text/setup/ranks.h"

namespace mezzo::text {

/// Of `mezzo launch`, whose ranks this process is one of; empty without.
std::string launch_id();

/// The settings of a run that a launcher may have started before (`config.restarted`). Where that start has begun its
/// work in `config.output`, which run.json tells, the run goes on from it, and replaces nothing. Else it begins as that
/// one did, its batches dealt out in as many shares, though there may be fewer ranks by now. Collective: the main rank
/// looks.
TrainConfig restarted(TrainConfig config, const Ranks& ranks);

/// The steps of the run in `config.output`, where an earlier start of the same launch has ended it, as where a rank was
/// lost behind that; nullopt where there is something left to do. Collective: the main rank looks.
std::optional<int64_t> steps_of_ended_run(const TrainConfig& config, const Ranks& ranks);

/// The folder of a run. Nothing in it is changed before it is certain that the run may write there,
/// and nothing is ever removed that no run of mezzo wrote: run.json tells.
class RunFolder {
 public:
  /// Locks the folder, where there is one.
  explicit RunFolder(const TrainConfig& config);

  /// Checks that the run may begin there, or go on from `resumed`. Changes nothing.
  /// @param total_steps  a finished run goes on where these are more than it was planned with.
  /// @throws c10::ValueError  that says what lies there.
  void check(const std::optional<Checkpoint>& resumed, const RunIdentity& identity, int64_t total_steps);

  /// After the check: makes the folder, where there is none yet.
  void make(const std::optional<Checkpoint>& resumed, const RunIdentity& identity, int64_t total_steps);

  /// Once run.json says whose folder it is: removes what a killed process left half written, the
  /// checkpoints of later steps than the one that was asked for and, where --overwrite was
  /// given, the files of the run whose place is taken. One that ended before its first
  /// checkpoint is kept in a folder.
  void clear();

  /// After make(): whether the folder is still where it was made.
  bool is_there() const { return lock_->is_there(); }

  /// The steps of checkpoints later than the one that was asked for, which
  /// clear() removes; newest first.
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
  bool goes_on_ = false;       // from a checkpoint
  bool begins_again_ = false;  // one that ended before its first checkpoint
  std::vector<int64_t> left_behind_;
  std::filesystem::path kept_;
};

}  // namespace mezzo::text
