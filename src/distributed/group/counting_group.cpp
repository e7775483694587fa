#include "distributed/group/counting_group.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>

namespace mezzo::distributed {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.is_sparse() ? tensor._indices().nbytes() + tensor._values().nbytes()
                                                 : tensor.nbytes());
}

}  // namespace

/// Collectives end on separate threads.
struct CountingGroup::Ledger {
  std::mutex mutex;
  CommStats stats;
  int under_way = 0;
  Clock::time_point busy_since;                       // where any is under way
  std::optional<Clock::time_point> compute_ended_at;  // of this step

  void end_compute() {
    const std::lock_guard lock(mutex);
    compute_ended_at = compute_ended_at.value_or(Clock::now());
  }

  void end_collective() {
    const std::lock_guard lock(mutex);
    if (--under_way > 0) {
      return;
    }
    const auto now = Clock::now();
    stats.seconds += seconds_between(busy_since, now);
    if (compute_ended_at) {
      stats.exposed_seconds += seconds_between(std::max(busy_since, *compute_ended_at), now);
    }
  }
};

CountingGroup::CountingGroup(c10d::ProcessGroup& group)
    : c10d::ProcessGroup(group.getRank(), group.getSize()), ledger_(std::make_shared<Ledger>()) {
  for (const auto& device : group.getDeviceTypes()) {
    // A group keeps one backend of each type: Gloo's for CPUs, and one for devices.
    setBackend(device.type(), device.is_cpu() ? BackendType::GLOO : BackendType::CUSTOM,
               group.getBackend(device.type()));
  }
}

c10::intrusive_ptr<c10d::Work> CountingGroup::allreduce(std::vector<at::Tensor>& tensors,
                                                        const c10d::AllreduceOptions& options) {
  const at::Tensor& sent = tensors[0];
  if (!sent.is_floating_point() && !sent.is_complex()) {  // the map of used parameters
    return c10d::ProcessGroup::allreduce(tensors, options);
  }
  if (torch::autograd::get_current_graph_task_id() != -1) {
    // The reducer asks for its own callback, in which it waits, after its last bucket.
    torch::autograd::Engine::get_default_engine().queue_callback([ledger = ledger_] { ledger->end_compute(); });
  }
  const bool timed = sent.is_cpu();
  do_each_time(notes_, [ledger = ledger_, timed, bytes = bytes_of(sent)] {
    const std::lock_guard lock(ledger->mutex);
    ++ledger->stats.buckets;
    ledger->stats.gradient_bytes += bytes;
    if (timed && ledger->under_way++ == 0) {
      ledger->busy_since = Clock::now();
    }
  });
  try {
    auto work = c10d::ProcessGroup::allreduce(tensors, options);
    if (timed) {
      work->getFuture()->addCallback([ledger = ledger_](c10::ivalue::Future&) { ledger->end_collective(); });
    }
    return work;
  } catch (...) {
    if (timed) {
      ledger_->end_collective();
    }
    throw;
  }
}

CommStats CountingGroup::stats() const {
  const std::lock_guard lock(ledger_->mutex);
  return ledger_->stats;
}

void CountingGroup::begin_step(const StepRecording::Notes& notes) {
  notes_ = notes;
  do_each_time(notes, [ledger = ledger_] {
    const std::lock_guard lock(ledger->mutex);
    ++ledger->stats.steps;
    ledger->compute_ended_at.reset();
  });
}

void CountingGroup::add_blocked(double seconds) {
  const std::lock_guard lock(ledger_->mutex);
  ledger_->stats.seconds += seconds;
  ledger_->stats.exposed_seconds += seconds;
}

void CountingGroup::compute_has_ended() { ledger_->end_compute(); }

}  // namespace mezzo::distributed
