#include "simulated/collectives.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/maximum.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "simulated/launch.h"

namespace mezzo::simulated {

using Tensors = std::vector<at::Tensor>;
/// Maps the tensors of each rank to their results.
using Combine = std::function<Tensors(const std::vector<Tensors>& of_ranks)>;

class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(static_cast<size_t>(ranks)) {}

  /// A kernel of this round is on its way in `queue`.
  void announce(uint64_t round, Queue& queue, Ticket ticket) {
    const std::lock_guard lock(mutex_);
    auto& here = rounds_[round];
    here.kernels.emplace_back(&queue, ticket);
    if (here.has_begun) {
      queue.demand(ticket);
    }
  }

  /// In a kernel: what `combine` makes of all ranks' tensors, when it has done so for every rank.
  Tensors meet(uint64_t round, size_t rank, const Tensors& mine, const Combine& combine) {
    std::unique_lock lock(mutex_);
    auto& here = rounds_[round];
    here.has_begun = true;
    for (const auto& [queue, ticket] : here.kernels) {
      queue->demand(ticket);
    }
    here.of_ranks.resize(ranks_);
    here.of_ranks[rank] = mine;
    wait_for_all(lock, here.arrived);
    if (is_aborted_) {
      return mine;
    }
    lock.unlock();
    auto combined = combine(here.of_ranks);
    lock.lock();
    wait_for_all(lock, here.combined);
    if (++here.left == ranks_) {
      rounds_.erase(round);
    }
    return combined;
  }

  void abort() {
    const std::lock_guard lock(mutex_);
    is_aborted_ = true;
    changed_.notify_all();
  }

 private:
  struct Round {
    std::vector<std::pair<Queue*, Ticket>> kernels;
    std::vector<Tensors> of_ranks;
    bool has_begun = false;
    size_t arrived = 0, combined = 0, left = 0;
  };

  void wait_for_all(std::unique_lock<std::mutex>& lock, size_t& count) {
    ++count;
    changed_.notify_all();
    changed_.wait(lock, [&] { return count == ranks_ || is_aborted_; });
  }

  const size_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Round> rounds_;
  bool is_aborted_ = false;
};

std::shared_ptr<Meeting> meeting_of(int ranks) { return std::make_shared<Meeting>(ranks); }

namespace {

using Future = c10::ivalue::Future;

struct DeviceWork final : c10d::Work {
  DeviceWork(int rank, Event the_end, c10::intrusive_ptr<Future> the_future)
      : Work(rank), end(std::move(the_end)), future(std::move(the_future)) {}
  bool isCompleted() override { return end.queue->is_done(end.ticket); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }
  void synchronize() override { end.block(Queue::of(current_stream(end.queue->stream().device_index()))); }
  c10::intrusive_ptr<Future> getFuture() override { return future; }

  Event end;
  c10::intrusive_ptr<Future> future;
};

class Collectives final : public c10d::Backend {
 public:
  Collectives(std::shared_ptr<Meeting> meeting, int rank, int ranks)
      : Backend(rank, ranks), meeting_(std::move(meeting)) {}
  const std::string getBackendName() const override { return "simulated"; }
  void abort() override { meeting_->abort(); }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const auto op = options.reduceOp;
    return start("all_reduce", tensors, [op, ranks = getSize()](const std::vector<Tensors>& of_ranks) {
      Tensors combined;
      for (size_t i = 0; i < of_ranks[0].size(); ++i) {
        auto sum = of_ranks[0][i].clone();
        for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
          sum = op == c10d::ReduceOp::MAX ? at::maximum(sum, of_ranks[rank][i]) : sum + of_ranks[rank][i];
        }
        combined.push_back(op == c10d::ReduceOp::AVG ? sum / ranks : sum);
      }
      return combined;
    });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return start("broadcast", tensors, [root = options.rootRank](const std::vector<Tensors>& of_ranks) {
      Tensors copies;
      for (const at::Tensor& tensor : of_ranks.at(static_cast<size_t>(root))) {
        copies.push_back(tensor.clone());
      }
      return copies;
    });
  }

 private:
  c10::intrusive_ptr<c10d::Work> start(const char* name, const Tensors& tensors, const Combine& combine) {
    const auto device = tensors.at(0).device();
    const c10::DeviceGuard on_device(device);
    if (!stream_) {
      stream_ = Queue::create(device);
    }
    auto& queue = Queue::of(*stream_);
    Event begin, end;
    begin.record(Queue::of(current_stream(device.index())));
    begin.block(queue);
    const c10::StreamGuard on_stream(*stream_);
    Launch launch(name);
    Tensors seen;
    for (const at::Tensor& tensor : tensors) {
      seen.push_back(launch.write(tensor));
      at::Tensor(tensor).record_stream(*stream_);
    }
    launch.run(
        [=, meeting = meeting_, rounds = rounds_, rank = static_cast<size_t>(getRank())] {
          const auto combined = meeting->meet(rounds->begun++, rank, seen, combine);
          for (size_t i = 0; i < seen.size(); ++i) {
            seen[i].copy_(combined[i]);
          }
        },
        [meeting = meeting_, rounds = rounds_](Queue& on, Ticket ticket) {
          meeting->announce(rounds->queued++, on, ticket);
        });
    end.record(queue);
    auto future = c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::vector{device});
    future->markCompleted(tensors);  // on the collectives' stream, which those who ask wait for
    return c10::make_intrusive<DeviceWork>(getRank(), std::move(end), std::move(future));
  }

  /// Of this rank, whose stream does them in the order in which they were queued.
  struct Rounds {
    uint64_t queued = 0, begun = 0;
  };

  const std::shared_ptr<Meeting> meeting_;
  const std::shared_ptr<Rounds> rounds_ = std::make_shared<Rounds>();
  std::optional<c10::Stream> stream_;
};

/// What copies to the CPU and back.
class HostCollectives final : public c10d::Backend {
 public:
  explicit HostCollectives(c10::intrusive_ptr<c10d::Backend> on_cpu)
      : Backend(on_cpu->getRank(), on_cpu->getSize()), on_cpu_(std::move(on_cpu)) {}
  const std::string getBackendName() const override { return "gloo"; }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return run(tensors, [&](Tensors& on_cpu) { return on_cpu_->allreduce(on_cpu, options); });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return run(tensors, [&](Tensors& on_cpu) { return on_cpu_->broadcast(on_cpu, options); });
  }

 private:
  struct Done final : c10d::Work {
    explicit Done(const Tensors& tensors)
        : future(c10::make_intrusive<Future>(c10::ListType::ofTensors(), std::vector{tensors.at(0).device()})) {
      future->markCompleted(tensors);
    }
    bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
    c10::intrusive_ptr<Future> getFuture() override { return future; }
    c10::intrusive_ptr<Future> future;
  };

  template <class Start>
  static c10::intrusive_ptr<c10d::Work> run(const Tensors& tensors, const Start& start) {
    Tensors on_cpu;
    for (const at::Tensor& tensor : tensors) {
      on_cpu.push_back(tensor.cpu());
    }
    start(on_cpu)->wait();
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].copy_(on_cpu[i]);
    }
    return c10::make_intrusive<Done>(tensors);
  }

  const c10::intrusive_ptr<c10d::Backend> on_cpu_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_collectives(std::shared_ptr<Meeting> meeting, int rank, int ranks) {
  return c10::make_intrusive<Collectives>(std::move(meeting), rank, ranks);
}

c10::intrusive_ptr<c10d::Backend> make_host_collectives(c10::intrusive_ptr<c10d::Backend> on_cpu) {
  return c10::make_intrusive<HostCollectives>(std::move(on_cpu));
}

}  // namespace mezzo::simulated
