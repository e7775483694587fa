#pragma once

#include "mezzo/text/train_config.h"
#include "text/run_setup.h"
#include "text/training_parts.h"

namespace mezzo::text {

/// Prints on stdout the steps of a run, and a table of the memory it takes on each rank beside what the machine has.
void print_dry_run(const TrainConfig& config, const RunSetup& setup, const RunPlan& plan);

}  // namespace mezzo::text
