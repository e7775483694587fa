#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace mezzo::simulated {

/// Where the devices of several ranks meet, which are threads of this process.
class Meeting;
std::shared_ptr<Meeting> meeting_of(int ranks);

/// Collectives between devices, as NCCL's: each on a stream of their own, after what the
/// current stream has done; nobody waits for them but streams. Has all_reduce (sum,
/// average, maximum) and broadcast.
c10::intrusive_ptr<c10d::Backend> make_collectives(std::shared_ptr<Meeting> meeting, int rank, int ranks);

}  // namespace mezzo::simulated
