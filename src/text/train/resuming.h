#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/train/train_config.h"
#include "text/train/ranks.h"

namespace mezzo::text {

/// The checkpoint that `config.resume` asks for; "auto" without any is none. Ranks agree on it, and on all other values
/// that decide which collectives they call, before any of them acts on it. Collective.
/// @throws c10::ValueError  if there are some and none is intact, naming the error of each. Also if ranks see different
///     checkpoints.
std::optional<Checkpoint> agree_on_start(const TrainConfig& config, const Ranks& ranks);

/// The settings of the run that goes on, if one does: of its checkpoint, or of its beginning, if it has none yet.
RunIdentity::Values flags_before(const TrainConfig& config, const std::optional<Checkpoint>& checkpoint);

/// The flags of the identity in a run.json; empty if the file is missing, or another program's.
RunIdentity::Values recorded_flags(const std::filesystem::path& run_json);

/// Warnings of differences between this run and `run_json`: number of ranks, settings and data. Another machine is a
/// difference, since the last bits may differ. @throws c10::ValueError  if it cannot be read
std::vector<std::string> differences_from(const std::filesystem::path& run_json,
                                          const RunIdentity& identity,
                                          const RunIdentity::Values& environment);

}  // namespace mezzo::text
