#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace mezzo::simulated {

/// The meeting point of the devices of several ranks. The ranks are threads of this process.
class Meeting;
std::shared_ptr<Meeting> meeting_of(int ranks);

/// Collectives between devices, as NCCL's. Each runs on a separate stream, after the current stream's work. Only
/// streams wait for them. They may be recorded; replayed collectives meet the other ranks' collectives. `abort` ends
/// the waiting collectives of all ranks, without a result. Has all_reduce (sum, average, maximum) and broadcast.
c10::intrusive_ptr<c10d::Backend> make_collectives(std::shared_ptr<Meeting> meeting, int rank, int ranks);

/// The same by the host, as Gloo's, whose name it has: it waits for the device, and cannot be recorded.
/// @param on_cpu  does the work
c10::intrusive_ptr<c10d::Backend> make_host_collectives(c10::intrusive_ptr<c10d::Backend> on_cpu);

}  // namespace mezzo::simulated
