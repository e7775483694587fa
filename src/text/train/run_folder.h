#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/train/train_config.h"
#include "text/train/ranks.h"
#include "text/train/run_lock.h"

namespace mezzo::text {

/// Of `mezzo launch`, whose ranks this process is one of; empty without.
std::string launch_id();

/// The settings of a run that a launcher may have started before (`config.restarted`). If that start has begun its work
/// in `config.output`, which run.json tells, the run goes on from it, and replaces nothing. Else it begins as that one
/// did, its batches dealt out in as many shares, though there may be fewer ranks by now. Collective: the main rank
/// looks.
TrainConfig restarted(TrainConfig config, const Ranks& ranks);

/// The contents of a run.json that a later run needs.
struct PresentRun {
  bool finished = false;
  int64_t total_steps = 0;  ///< planned
  int64_t steps = 0;        ///< done when it was written
  std::string run;          ///< its name; empty for runs of a mezzo that gave none
  std::string launch;       ///< the launcher that started it; empty without
  std::optional<RunIdentity> identity;
  RunIdentity::Values final_evaluation;  ///< as of final_evaluation_of(); empty if an older mezzo wrote it
  std::string metric;                    ///< by which the best model is chosen; empty if an older mezzo wrote it
  bool greater_is_better = true;         ///< of the metric
  double best = std::numeric_limits<double>::quiet_NaN();  ///< the metric of the best model so far; NaN if undefined
  double best_loss = std::numeric_limits<double>::quiet_NaN();  ///< of that model, on dev
};

/// nullopt if run.json is missing, or if no run of mezzo wrote it.
std::optional<PresentRun> read_present_run(const std::filesystem::path& output);

/// Whether there is a run.json in `output`. One that a crash in the first second emptied or cut off does not count.
bool has_run_json(const std::filesystem::path& output);

/// The name of a file or folder in `output` that a run would change; empty for none. Empty ones do not count without a
/// run.json.
std::string find_run_file(const std::filesystem::path& output);

/// The folder of a run. Nothing in it is changed before it is certain that the run may write there. Only files that a
/// run of mezzo wrote are ever removed: run.json tells.
class RunFolder {
 public:
  /// Locks the folder, if it exists.
  explicit RunFolder(const TrainConfig& config);

  /// Checks that the run may begin there, or go on from `resumed`. Changes nothing.
  /// @param total_steps  a finished run goes on if these are more than it was planned with.
  /// @throws c10::ValueError  that says what lies there.
  void check(const std::optional<Checkpoint>& resumed, const RunIdentity& identity, int64_t total_steps);

  /// After the check: makes the folder, if it does not exist yet.
  void make(const std::optional<Checkpoint>& resumed, const RunIdentity& identity, int64_t total_steps);

  /// Once run.json names the owner of the folder: removes files that a killed process left half written, and
  /// checkpoints of later steps than the requested one. With --overwrite it also removes the files of the replaced run.
  /// One that ended before its first checkpoint is kept in a folder.
  void clear();

  /// After make(): whether the folder is still at its path.
  bool is_there() const { return lock_->is_there(); }
  void check_is_there() const;

  /// The steps of checkpoints later than the one that was asked for, which
  /// clear() removes; newest first.
  const std::vector<int64_t>& left_behind() const { return left_behind_; }

  /// The run's name in run.json and in its checkpoints.
  const std::string& run() const { return run_; }

  /// The folder in which clear() put the files of a run without a checkpoint; empty for none.
  const std::filesystem::path& kept() const { return kept_; }

 private:
  void check_new(const RunIdentity& identity);
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
