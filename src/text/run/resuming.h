#pragma once

#include <optional>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/setup/train_config.h"
#include "text/setup/ranks.h"

namespace mezzo::text {

/// The checkpoint that `config.resume` asks for; "auto" without any is none. Ranks agree on it, and
/// on what else decides which collectives they call, before any of them acts on it. Collective.
/// @throws c10::ValueError  where there are some and none is intact, naming what is wrong with
///     each; or where ranks see different ones.
std::optional<Checkpoint> agree_on_start(const TrainConfig& config, const Ranks& ranks);

/// The settings of the run that goes on, if one does: of its checkpoint, or of its beginning, where it has none yet.
RunIdentity::Values flags_before(const TrainConfig& config, const std::optional<Checkpoint>& checkpoint);

}  // namespace mezzo::text
