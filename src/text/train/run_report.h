#pragma once

#include <optional>

#include "mezzo/text/report/report.h"
#include "mezzo/text/tasks/task.h"
#include "text/train/run_setup.h"

namespace mezzo::text {

/// The parts of a run's report that its records do not hold: title, settings, commands, data, and the quality of the
/// model.
/// @param evaluation  of the model that the run keeps; nullopt if there is none
ReportInput report_input(const TrainConfig& config, const RunSetup& setup, const std::optional<Evaluation>& evaluation);

}  // namespace mezzo::text
