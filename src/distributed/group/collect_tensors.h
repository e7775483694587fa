#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// Brings the tensors of all ranks together on rank `to`, on the group's device. No two ranks may
/// have one of the same name. The other ranks get nothing back. Collective; tensors travel in
/// messages of about `most_bytes`.
std::map<std::string, at::Tensor> collect_tensors(ProcessGroup& group,
                                                  const std::map<std::string, at::Tensor>& mine,
                                                  int to,
                                                  int64_t most_bytes);

}  // namespace mezzo::distributed
