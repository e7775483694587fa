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

std::atomic<Recording*> the_recording = nullptr;
std::mutex queues_mutex;  // of all recordings

using Kind = Recording::Step::Kind;

class Graph final : public DeviceGraph {
 public:
  explicit Graph(std::shared_ptr<GraphPool> pool) { recording_.pool = std::move(pool); }
  ~Graph() override { stop(); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin() override {
    const auto stream = current_stream(current_device());
    TORCH_CHECK(stream != default_stream(current_device()), "simulated device: the default stream is not recorded");
    recording_.queues = {&Queue::of(stream)};
    Recording* nobody = nullptr;
    TORCH_CHECK(the_recording.compare_exchange_strong(nobody, &recording_), "simulated device: recorded already");
  }

  void end() override {
    stop();
    TORCH_CHECK(recording_.queues.front() == &Queue::of(current_stream(current_device())),
                "simulated device: a recording ended on another stream than it began on");
    TORCH_CHECK(recording_.fault.empty(), "simulated device: the recording is void: ", recording_.fault);
    check_joined();
  }

  void replay() override {
    Queue& queue = Queue::of(current_stream(current_device()));
    poison_pool().enqueue(queue);
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
    Recording* mine = &recording_;
    the_recording.compare_exchange_strong(mine, nullptr);
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
    Clock at_end = clocks[recording_.queues.front()];
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

  Recording recording_{};
};

class Graphs final : public DeviceGraphs {
 public:
  std::unique_ptr<DeviceGraph> new_graph() override { return std::make_unique<Graph>(pool_); }
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

Recording* current_recording() { return the_recording; }

Recording* recording_of(const Queue& queue) {
  Recording* recording = the_recording;
  if (recording == nullptr) {
    return nullptr;
  }
  const std::lock_guard lock(queues_mutex);
  return std::ranges::find(recording->queues, &queue) != recording->queues.end() ? recording : nullptr;
}

size_t Recording::record_event(Queue& queue) {
  steps.push_back({Step::Kind::kRecord, &queue, events});
  return events++;
}

void Recording::wait(Queue& queue, size_t event) {
  steps.push_back({Step::Kind::kWait, &queue, event});
  const std::lock_guard lock(queues_mutex);
  if (std::ranges::find(queues, &queue) == queues.end()) {
    queues.push_back(&queue);
  }
}

void forbid_in_recordings(const std::string& what) {
  if (Recording* recording = the_recording) {
    recording->fault = what;
    TORCH_CHECK(false, "simulated device: ", what, " while a stream is recorded");
  }
}

}  // namespace mezzo::simulated
