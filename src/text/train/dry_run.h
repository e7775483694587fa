#pragma once

#include <cstdint>
#include <functional>

#include "text/train/training_run.h"

namespace mezzo::text {

/// `--dry-run`: prints the steps of a run, and the memory and the time that they take. Tries a few steps for that, and
/// evaluates a few texts. Collective.
/// @param prepare  makes the model ready to train; called if a step may fit the memory
/// @param try_step  takes a step, counted from 0; returns whether to stop
/// @return false if it was stopped
bool dry_run(TrainingRun& run, const std::function<void()>& prepare, const std::function<bool(int64_t step)>& try_step);

}  // namespace mezzo::text
