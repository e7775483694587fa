#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "simulated/launch.h"
#include "simulated/memory.h"
#include "simulated/streams.h"

/// Graphs: kernels that a stream was given while it was recorded, and others that its events led to, to be done again
/// on the same memory. A recording is void, and says so at once and at its end, where the host waits for a device, or
/// an event leads into it; and at its end, where its own stream does not wait for all the others. A replay fills all
/// memory of its pool with poison first, so that nobody goes by what an earlier one left there; it draws the random
/// numbers that its kernels would draw as they stand, as those of CUDA do; and it is a fault where it uses memory that
/// was freed since.
namespace mezzo::simulated {

/// Memory that was allocated while streams were recorded.
struct GraphPool {
  std::vector<std::weak_ptr<Block>> blocks;
};

/// A stream that is being recorded.
struct Recording {
  /// A kernel, or an event, by its number here, that is recorded or waited for.
  struct Step {
    enum class Kind { kKernel, kRecord, kWait };
    Kind kind;
    Queue* queue;
    size_t event = 0;
    Kernel kernel = {};
  };

  std::vector<Queue*> queues;  ///< the first is the one that the recording began on
  std::shared_ptr<GraphPool> pool;
  std::vector<Step> steps;
  size_t events = 0;
  std::vector<Draw> draws;  ///< of the next kernel
  std::string fault;        ///< what made it void

  /// @return the event's number
  size_t record_event(Queue& queue);
  /// `queue` is recorded from here on, if it was not before.
  void wait(Queue& queue, size_t event);
};

/// The one of the process, if any.
Recording* current_recording();
/// The same, if this stream is part of it.
Recording* recording_of(const Queue& queue);

/// Makes a recording void, if there is one, and throws.
/// @param what  such as "copy_ waits for the device"
void forbid_in_recordings(const std::string& what);

}  // namespace mezzo::simulated
