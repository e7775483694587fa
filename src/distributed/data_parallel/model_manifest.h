#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// Throws c10::ValueError on all ranks where `lines` (what each rank must have alike, a line each)
/// are not the same everywhere, naming the first difference and the ranks.
void check_same_lines(ProcessGroup& group, const std::vector<std::string>& lines);

/// A line for each parameter and buffer: name, dtype, shape, whether it is trained.
std::vector<std::string> describe(const torch::nn::Module& module);

}  // namespace mezzo::distributed
