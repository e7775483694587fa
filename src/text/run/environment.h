#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/checkpoint/checkpoint.h"
#include "text/setup/run_setup.h"

namespace mezzo::text {

/// What a run's numbers depend on beside its settings and data, by name, and where it ran: versions, compiler,
/// system, processor, instruction set of the kernels, threads, device, precision.
std::vector<std::pair<std::string, std::string>> environment_of(const RunSetup& setup);

/// Of what decides the last bits: "LibTorch was '2.12.0', is now '2.13.0'". Empty where all of it is the same.
std::string describe_move(const RunIdentity::Values& was, const RunIdentity::Values& is);

}  // namespace mezzo::text
