#pragma once

#include <cstdint>
#include <optional>

#include "mezzo/text/train/train_config.h"
#include "text/train/ranks.h"

namespace mezzo::text {

/// The steps of the run in `config.output`, if it has finished and nothing is left to do. So it is if `--resume auto`
/// asks for no more steps, or if an earlier start of the same launch has ended it. Changes nothing. Collective: the
/// main rank looks.
/// @throws c10::ValueError  if `--resume auto` finds a finished run that differs in a setting that a checkpoint must
///     agree with, in training, dev or test data, or in --calibrate. Also if its model or report is missing or cannot
///     be read
std::optional<int64_t> steps_of_finished_run(TrainConfig config, const Ranks& ranks);

/// Prints on stderr that the run in `config.output` had finished after `steps` steps.
void say_that_run_has_finished(const TrainConfig& config, int64_t steps);

}  // namespace mezzo::text
