#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "mezzo/text/setup/train_config.h"
#include "text/machine/machine_memory.h"
#include "text/setup/ranks.h"
#include "text/setup/run_plan.h"
#include "text/setup/run_setup.h"
#include "text/train/memory_estimate.h"

/// `--dry-run`: what a run would do, and what that takes. A few of its steps are
/// taken for that, and forgotten.
namespace mezzo::text {

/// The steps that lie ahead, of a very long run the first.
struct PlannedWork {
  BatchShape largest;              ///< micro-batch of any rank
  int64_t largest_step = 0;        ///< where that is
  std::vector<int64_t> tokens;     ///< of each step, all ranks together, in ascending order
  std::vector<int64_t> by_tokens;  ///< the steps in that order
};

PlannedWork look_ahead(const TrainConfig& config, const TokenizedTexts& texts, RunPlan plan);

/// Of `count` steps or more, the `n`-th to measure, counted from 1: middle, quarters, eighths, so
/// that the mean of the first few stands for all.
int64_t nth_sample(int64_t n, int64_t count);

/// Up to `most` of the texts, evenly spread, without targets.
TokenizedTexts sample_texts(const TokenizedTexts& texts, int64_t most);

/// What some steps took, the one with the largest micro-batch among them.
struct MeasuredSteps {
  int64_t steps = 0;
  double seconds_per_step = 0;
  double seconds_per_text = 0;    ///< of evaluation; 0 without one
  int64_t peak_memory_bytes = 0;  ///< resident on the CPU, of the rank with most
};

/// Takes steps of the run, at first the one that needs the most memory, which also pays for what
/// first steps set up; then evaluates a few texts. Collective.
/// @param try_step  takes a step of a model in training mode; returns whether to stop.
MeasuredSteps try_steps(const RunSetup& setup,
                        const Ranks& ranks,
                        const PlannedWork& work,
                        const std::function<bool(int64_t step)>& try_step);

/// Prints on stdout the steps of a run, the memory it takes on each rank beside what the
/// machine has, and the time.
/// @param memory    as it was before the first step.
/// @param measured  nullopt where no step could be tried.
void print_dry_run(const TrainConfig& config,
                   const RunSetup& setup,
                   const RunPlan& plan,
                   const PlannedWork& work,
                   const MachineMemory& memory,
                   const std::optional<MeasuredSteps>& measured);

}  // namespace mezzo::text
