#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "simulated/launch.h"
#include "simulated/memory.h"
#include "simulated/streams.h"

/// Graphs: kernels that a stream was given while it was recorded, to be done again on the same
/// memory. A recording is void, and says so at once and at its end, where the host waits for a
/// device, or an event leads into it or out of it. A replay fills all memory of its pool with
/// poison first, so that nobody goes by what an earlier one left there; it draws the random numbers
/// that its kernels would draw as they stand, as those of CUDA do; and it is a fault where it uses
/// memory that was freed since.
namespace mezzo::simulated {

/// Memory that was allocated while streams were recorded.
struct GraphPool {
  std::vector<std::weak_ptr<Block>> blocks;
};

/// A stream that is being recorded.
struct Recording {
  const Queue* queue;
  std::shared_ptr<GraphPool> pool;
  std::vector<Kernel> kernels;
  std::vector<Draw> draws;  ///< of the next kernel
  std::string fault;        ///< what made it void
};

/// The one of the process, if any.
Recording* current_recording();
/// The same, if it is of this stream.
Recording* recording_of(const Queue& queue);

/// Makes a recording void, if there is one, and throws.
/// @param what  such as "copy_ waits for the device"
void forbid_in_recordings(const std::string& what);

}  // namespace mezzo::simulated
