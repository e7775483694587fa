#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <functional>

#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// Makes a GradScaler decide together with those of the other ranks: all skip the same steps and
/// keep the same scale. One collective over 8 bytes for every check of gradients.
/// @code
/// mezzo::GradScaler scaler(mezzo::GradScalerOptions().found_inf_all_reduce(found_inf_all_reduce(group)));
/// @endcode
/// Not needed for gradients that DistributedDataParallel has averaged, which overflow on all ranks
/// or on none, but for those that only one rank computes, or that ranks divide among them. `group`
/// must outlive the scaler. Collective, and like the group neither thread-safe nor, on CUDA
/// devices, without a sync.
std::function<void(at::Tensor& flags)> found_inf_all_reduce(ProcessGroup& group);

}  // namespace mezzo::distributed
