#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "simulated/launch.h"
#include "simulated/memory.h"
#include "simulated/streams.h"

/// Graphs: kernels that a stream was given while it was recorded, and others that its events led to, to be done again
/// on the same memory. A recording is void if its thread waits for a device, any thread waits for its streams, or an
/// event leads into it. It says so at once and at its end. It is also void, at its end, if its own stream does not wait
/// for all the others. Several threads may record at once, as CUDA's in thread-local mode. A replay that does not
/// continue another graph's results first fills all memory of its pool with poison. So nothing uses data that an
/// earlier replay left there. As in CUDA, a replay draws the random numbers that its kernels would draw outside a
/// graph. It is a fault if it uses memory that was freed since.
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

/// The one that this stream is part of, if any.
Recording* recording_of(const Queue& queue);
/// Whether it has not ended yet.
bool is_under_way(const Recording* recording);

/// Makes a recording of this thread, or of the stream, void, if there is one, and throws.
/// @param what  such as "copy_ waits for the device"
void forbid_in_recordings(const std::string& what, const Queue* queue = nullptr);

}  // namespace mezzo::simulated
