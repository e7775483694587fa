#pragma once

#include <string>

#include "mezzo/text/setup/train_config.h"

namespace mezzo::text {

/// The `resume` of a run that a launcher starts again: "auto" where its earlier start, told the
/// same, has left a checkpoint in `config.output`, so that there is more to go on from; else that
/// of `config`. All ranks read the same.
/// @throws c10::ValueError  where that folder cannot be read.
std::string resume_of_restarted(const TrainConfig& config);

}  // namespace mezzo::text
