#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "distributed/data_parallel/distributed_data_parallel_core.h"

namespace mezzo::distributed {

/// The next action of each rank, if ranks may take different numbers of steps.
struct JoinRound {
  // A status is a sum of these; 0: has finished.
  static constexpr int64_t kSteps = 1, kReduces = 2, kCopiesBuffers = 4;

  int active = 0;           // ranks that have not finished
  int last_active = -1;     // the highest of them
  int first_finished = -1;  // the lowest of the others
  int64_t status = 0;

  bool reduces() const { return (status & kReduces) != 0; }
  bool copies_buffers() const { return (status & kCopiesBuffers) != 0; }
};

namespace {

/// Tells the reducer how many ranks there are still, in the form in which it asks.
class CountedRanks : public c10d::Work {
 public:
  explicit CountedRanks(int64_t count) : count_(at::full({1}, count, at::kLong)) {}
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<at::Tensor> result() override { return {count_}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    future->markCompleted(c10::IValue(result()));
    return future;
  }

 private:
  at::Tensor count_;
};

JoinRound exchange(ProcessGroup& group, int64_t status) {
  auto by_rank = at::zeros({group.size()}, at::kLong);
  by_rank.mutable_data_ptr<int64_t>()[group.rank()] = status;
  group.all_reduce(by_rank);
  JoinRound round;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t other = by_rank.const_data_ptr<int64_t>()[rank];
    if (other == 0) {
      round.first_finished = round.first_finished < 0 ? rank : round.first_finished;
      continue;
    }
    TORCH_CHECK(round.active == 0 || other == round.status, "DistributedDataParallel: ranks ", round.last_active,
                " and ", rank,
                " run different kinds of steps; make the same calls of no_sync and train() on all ranks");
    ++round.active;
    round.last_active = rank;
    round.status = other;
  }
  return round;
}

}  // namespace

int DistributedDataParallelBase::Core::agree_on_step(bool reduces_now, bool copies_buffers_now) {
  const JoinRound round = exchange(group, JoinRound::kSteps + (reduces_now ? JoinRound::kReduces : 0) +
                                              (copies_buffers_now ? JoinRound::kCopiesBuffers : 0));
  TORCH_CHECK(!joining->throw_on_early_termination() || round.first_finished < 0, "DistributedDataParallel: rank ",
              round.first_finished, " has run out of batches");
  reducer->set_forward_pass_work_handle(c10::make_intrusive<CountedRanks>(round.active),
                                        joining->divide_by_initial_world_size());
  return round.last_active;
}

void DistributedDataParallelBase::Core::take_part(const JoinRound& round) {
  if (round.reduces()) {
    // The first step of a static graph is another one, and nobody else could
    // learn the graph for this rank.
    TORCH_CHECK(!options.static_graph() || has_reduced,
                "DistributedDataParallel: with static_graph, every rank must "
                "take a step before it runs out of batches");
    rebuild_buckets();
  }
  if (round.copies_buffers()) {
    copy_buffers(round.last_active);
  }
  copies_buffers_next = round.reduces();
  if (!round.reduces()) {
    return;
  }
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> reduced;
  for (auto& zeros : reducer->get_grad_buckets(/*return_zero_tensors=*/true)) {
    reduced.push_back(reducer->run_comm_hook(zeros));
  }
  for (const auto& future : reduced) {
    future->waitAndThrow();
  }
  if (options.find_unused_parameters() && !options.static_graph()) {
    std::vector<at::Tensor> used{reducer->get_local_used_map_on_device().zero_()};
    group.c10d()->allreduce(used, {})->wait();
  }
  reducer->push_rebuilt_params_for_all_indices();
}

void DistributedDataParallelBase::join(const std::function<void()>& loop, const JoinOptions& options) {
  Core& core = *core_;
  TORCH_CHECK_VALUE(!core.joining, "DistributedDataParallel: join within join");
  TORCH_CHECK_VALUE(!core.has_hook || options.divide_by_initial_world_size(),
                    "DistributedDataParallel: join cannot divide by the remaining ranks, because the comm hook divides "
                    "by itself; set divide_by_initial_world_size to true");
  struct Joining {
    Core& core;
    ~Joining() {
      core.joining.reset();
      core.reducer->set_forward_pass_work_handle(nullptr, /*useStaticWorldSize=*/true);
    }
  } const joining{core};
  core.joining = options;
  core.group.guard([&] {
    loop();
    bool ran_last = true;
    while (true) {
      const JoinRound round = exchange(core.group, 0);
      if (round.active == 0) {
        break;
      }
      TORCH_CHECK(!options.throw_on_early_termination(), "DistributedDataParallel: rank ", round.first_finished,
                  " has run out of batches");
      core.take_part(round);
      ran_last = false;
    }
    const JoinRound last = exchange(core.group, ran_last ? JoinRound::kSteps : 0);
    broadcast(core.group.c10d(), parameters_and_buffers(*core.module, core.has_buffers), last.last_active);
  });
}

}  // namespace mezzo::distributed
