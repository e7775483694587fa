#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>

#include "mezzo/text/checkpoint.h"
#include "mezzo/text/train_config.h"
#include "text/run_lock.h"

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

  /// Once run.json says whose folder it is: removes what a killed process left half written and, where the run takes
  /// another's place, that one's files.
  void clear() const;

  /// The run's name in run.json and in its checkpoints.
  const std::string& run() const { return run_; }

 private:
  void check_new(const RunIdentity& identity);
  std::string foreign_file() const;
  bool holds(const std::string& checkpoint) const;

  const TrainConfig& config_;
  std::optional<RunLock> lock_;
  std::string run_;
  bool replaces_ = false;  // another run
};

/// The checkpoint that `config.resume` asks for; "auto" without any is none.
/// @throws c10::ValueError  where there are some and none is intact, naming what is wrong with each.
std::optional<Checkpoint> find_checkpoint(const TrainConfig& config);

}  // namespace mezzo::text
