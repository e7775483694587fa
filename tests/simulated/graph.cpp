#include "simulated/graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "graph/device_graph.h"
#include "simulated/generator.h"
#include "simulated/report.h"

namespace mezzo::simulated {
namespace {

std::mutex recordings_mutex;  // of the list and of the queues in it
std::vector<Recording*> recordings;
thread_local Recording* recording_of_thread = nullptr;

/// Call with recordings_mutex held.
Recording* find_recording_of(const Queue& queue) {
  for (Recording* recording : recordings) {
    if (std::ranges::find(recording->queues, &queue) != recording->queues.end()) {
      return recording;
    }
  }
  return nullptr;
}

using Kind = Recording::Step::Kind;

class Graph final : public DeviceGraph {
 public:
  Graph(std::shared_ptr<GraphPool> pool, bool goes_on) : goes_on_(goes_on) { recording_.pool = std::move(pool); }
  ~Graph() override { stop(); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin() override {
    const auto stream = current_stream(current_device());
    TORCH_CHECK(stream != default_stream(current_device()), "simulated device: the default stream is not recorded");
    Queue& queue = Queue::of(stream);
    const std::lock_guard lock(recordings_mutex);
    TORCH_CHECK(recording_of_thread == nullptr && find_recording_of(queue) == nullptr,
                "simulated device: recorded already");
    recording_.queues = {&queue};
    recordings.push_back(&recording_);
    recording_of_thread = &recording_;
  }

  void end() override {
    stop();
    TORCH_CHECK(recording_.queues.front() == &Queue::of(current_stream(current_device())),
                "simulated device: a recording ended on another stream than it began on");
    TORCH_CHECK(recording_.fault.empty(), "simulated device: the recording is void: ", recording_.fault);
    check_joined();
  }

  void replay() override {
    note_replay();
    Queue& queue = Queue::of(current_stream(current_device()));
    if (!goes_on_) {
      poison_pool().enqueue(queue);
    }
    std::vector<Event> events(recording_.events);
    for (const Recording::Step& step : recording_.steps) {
      Queue& on = step.queue == recording_.queues.front() ? queue : *step.queue;
      if (step.kind == Kind::kRecord) {
        events[step.event].record(on);
      } else if (step.kind == Kind::kWait) {
        events[step.event].block(on);
      } else {
        check_not_freed(step.kernel);
        with_next_numbers(step.kernel).enqueue(on);
      }
    }
  }

 private:
  void stop() {
    const std::lock_guard lock(recordings_mutex);
    std::erase(recordings, &recording_);
    recording_of_thread = recording_of_thread == &recording_ ? nullptr : recording_of_thread;
  }

  /// By a clock for each stream, which ticks with its steps.
  void check_joined() const {
    std::map<const Queue*, Clock> clocks;
    std::vector<Clock> of_events(recording_.events);
    for (const Recording::Step& step : recording_.steps) {
      Clock& clock = clocks[step.queue];
      clock.resize(std::max(clock.size(), step.queue->number() + 1));
      if (step.kind == Kind::kRecord) {
        of_events[step.event] = clock;
        continue;
      }
      if (step.kind == Kind::kWait) {
        join(clock, of_events[step.event]);
      }
      ++clock[step.queue->number()];
    }
    Clock& at_end = clocks[recording_.queues.front()];
    at_end.resize(std::max(at_end.size(), recording_.queues.front()->number() + 1));  // of one that recorded nothing
    for (const auto& [queue, clock] : clocks) {
      at_end.resize(std::max(at_end.size(), clock.size()));
      TORCH_CHECK(at_end[queue->number()] == clock[queue->number()],
                  "simulated device: the recording is void: nobody waits for ", queue->stream());
    }
  }

  Kernel poison_pool() const {
    Kernel poison{"the start of a replay", {}, {}, {}, {}};
    for (const auto& weak : recording_.pool->blocks) {
      if (auto block = weak.lock()) {
        poison.uses.push_back({std::move(block), /*writes=*/true});
      }
    }
    poison.body = [uses = poison.uses] {
      for (const auto& use : uses) {
        use.block->poison();
      }
    };
    return poison;
  }

  static Kernel with_next_numbers(Kernel kernel) {
    for (const auto& [seeded_by, numbers] : kernel.draws) {
      kernel.body = [body = kernel.body, own = numbers, seed = next_seed(seeded_by)]() mutable {
        own.set_current_seed(seed);
        body();
      };
    }
    return kernel;
  }

  static void check_not_freed(const Kernel& kernel) {
    const std::lock_guard order(order_mutex());
    for (const auto& use : kernel.uses) {
      if (use.block->is_freed && !use.block->is_of_graph) {
        note_fault(c10::str(kernel.name, " of a graph uses memory that was freed since it was recorded"));
      }
    }
  }

  const bool goes_on_;
  Recording recording_{};
};

class Graphs final : public DeviceGraphs {
 public:
  std::unique_ptr<DeviceGraph> new_graph(bool goes_on) override { return std::make_unique<Graph>(pool_, goes_on); }
  bool is_recording() const override { return recording_of(Queue::of(current_stream(current_device()))) != nullptr; }

 private:
  const std::shared_ptr<GraphPool> pool_ = std::make_shared<GraphPool>();
};

[[maybe_unused]] const bool registered = [] {
  register_device_graphs(kType,
                         [](c10::Device) -> std::unique_ptr<DeviceGraphs> { return std::make_unique<Graphs>(); });
  return true;
}();

}  // namespace

Recording* recording_of(const Queue& queue) {
  const std::lock_guard lock(recordings_mutex);
  return find_recording_of(queue);
}

bool is_under_way(const Recording* recording) {
  const std::lock_guard lock(recordings_mutex);
  return std::ranges::find(recordings, recording) != recordings.end();
}

size_t Recording::record_event(Queue& queue) {
  steps.push_back({Step::Kind::kRecord, &queue, events});
  return events++;
}

void Recording::wait(Queue& queue, size_t event) {
  steps.push_back({Step::Kind::kWait, &queue, event});
  const std::lock_guard lock(recordings_mutex);
  if (std::ranges::find(queues, &queue) == queues.end()) {
    queues.push_back(&queue);
  }
}

void forbid_in_recordings(const std::string& what, const Queue* queue) {
  Recording* recording = queue != nullptr ? recording_of(*queue) : nullptr;
  recording = recording != nullptr ? recording : recording_of_thread;
  if (recording != nullptr) {
    recording->fault = what;
    TORCH_CHECK(false, "simulated device: ", what, " while a stream is recorded");
  }
}

}  // namespace mezzo::simulated
