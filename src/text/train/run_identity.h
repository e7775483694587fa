#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "mezzo/text/train/train_config.h"
#include "text/train/ranks.h"
#include "text/train/run_setup.h"

namespace mezzo::text {

/// @param config  whose batch size and shares are numbers.
RunIdentity identity_of(const TrainConfig& config, const RunSetup& setup);

/// The settings and texts that only the final evaluation depends on: --calibrate and --test.
RunIdentity::Values final_evaluation_of(const TrainConfig& config, const RunSetup& setup);

/// Of the texts of --test, too, which a resumed run may change. @throws c10::ValueError  if
/// ranks disagree, naming the first difference. Collective.
void check_same_on_all(const RunIdentity& identity, const RunSetup& setup, const Ranks& ranks);

/// The values of `was` that differ in `is`: "seed was '1', is now '2'". Of a later group nothing where an earlier one
/// differs. Empty if they agree.
std::string describe_difference(const RunIdentity& was, const RunIdentity& is);
std::string describe_difference(const RunIdentity::Values& was, const RunIdentity::Values& is);
/// The same of a checkpoint. If the runs agree, whether its best model was chosen by the first metric of `task`.
std::string describe_difference(const Checkpoint& was, const RunIdentity& is, const Task& task);

/// Values besides settings and data that a run's numbers depend on, by name, and its machine. They are versions,
/// compiler, system, processor, instruction set of the kernels, threads, device, precision.
std::vector<std::pair<std::string, std::string>> environment_of(const RunSetup& setup);

/// Of what decides the last bits: "LibTorch was '2.12.0', is now '2.13.0'". Empty where all of it is the same.
std::string describe_move(const RunIdentity::Values& was, const RunIdentity::Values& is);

}  // namespace mezzo::text
