#pragma once

#include <functional>
#include <optional>

#include "mezzo/distributed/group/process_group.h"
#include "mezzo/text/checkpoint/checkpoint.h"
#include "text/train/ranks.h"
#include "text/train/run_keeper.h"
#include "text/train/run_plan.h"
#include "text/train/run_setup.h"

namespace mezzo::text {

/// The state that the parts of a trainer share: settings, data, plan, folder and counters.
struct TrainingRun {
  /// Reads and checks all. Changes nothing on the disk. Collective.
  /// @param given  gets defaults that depend on the model
  /// @param stop_requested  must outlive this
  /// @param checkpoint  returns the checkpoint that the keeper saves
  /// @throws c10::ValueError  for settings, files or a checkpoint that are wrong
  TrainingRun(TrainConfig& given,
              const std::function<bool()>& stop_requested,
              distributed::ProcessGroup* group,
              RunKeeper::State checkpoint);

  /// Makes the folder and begins the records. Collective.
  void open();

  /// Versions and machine, by name.
  RunIdentity::Values environment() const;

  const std::function<bool()>& stop_requested;
  const Ranks ranks;
  RunKeeper keeper;
  RunSetup setup;
  std::optional<Checkpoint> resumed;  ///< until its tensors are taken over
  const TrainConfig config;           ///< with numbers for batch size and shares
  const RunPlan plan;
  const RunIdentity identity;
  TrainerState state;
};

}  // namespace mezzo::text
