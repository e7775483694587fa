#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace mezzo::simulated {

/// Where the devices of several ranks meet, which are threads of this process.
class Meeting;
std::shared_ptr<Meeting> meeting_of(int ranks);

/// Collectives between devices, as NCCL's: each on a separate stream, after what the
/// current stream has done; nobody waits for them but streams. They may be recorded, and meet those of the other ranks
/// when they are replayed. `abort` ends those that wait, of all ranks, without a result. Has all_reduce (sum,
/// average, maximum) and broadcast.
c10::intrusive_ptr<c10d::Backend> make_collectives(std::shared_ptr<Meeting> meeting, int rank, int ranks);

/// The same by the host, as Gloo's, whose name it has: it waits for the device, and cannot be recorded.
/// @param on_cpu  does the work
c10::intrusive_ptr<c10d::Backend> make_host_collectives(c10::intrusive_ptr<c10d::Backend> on_cpu);

}  // namespace mezzo::simulated
