#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// Throws c10::ValueError on all ranks if `lines` differ between ranks, naming the first difference
/// and the ranks. Each line is a property that all ranks must share.
void check_same_lines(ProcessGroup& group, const std::vector<std::string>& lines);

/// A line for each parameter and buffer: name, dtype, shape, whether it is trained.
std::vector<std::string> describe(const torch::nn::Module& module);

}  // namespace mezzo::distributed
