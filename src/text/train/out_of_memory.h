#pragma once

#include <exception>
#include <string>

#include "mezzo/text/setup/train_config.h"

namespace mezzo::text {

/// Whether memory ran out: that of a device, of tensors on the CPU, or of C++.
bool is_out_of_memory(const std::exception& error);

/// What a training step that ran out of memory says: which step of what device, what it held at
/// once, and what to do.
/// @param longest_text  tokens of the longest text of the step
std::string describe_out_of_memory(const TrainConfig& config,
                                   int64_t step,
                                   const std::string& device,
                                   int64_t longest_text);

}  // namespace mezzo::text
