#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "mezzo/text/setup/train_config.h"

namespace mezzo::text {

/// What a training step that ran out of memory says: which step of what device, what it held at
/// once, and what to do.
/// @param longest_text  tokens of the longest text of the step
std::string describe_out_of_memory(const TrainConfig& config,
                                   int64_t step,
                                   const c10::Device& device,
                                   int ranks,
                                   int64_t longest_text);

}  // namespace mezzo::text
