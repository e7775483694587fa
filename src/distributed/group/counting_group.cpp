#include "distributed/group/counting_group.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace mezzo::distributed {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  if (tensor.is_sparse()) {
    return bytes_of(tensor._indices()) + bytes_of(tensor._values());
  }
  return static_cast<int64_t>(tensor.nbytes());
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    bytes += bytes_of(tensor);
  }
  return bytes;
}

}  // namespace

CountingGroup::CountingGroup(c10::intrusive_ptr<c10d::ProcessGroup> group,
                             std::shared_ptr<CommLedger> ledger,
                             bool for_hook)
    : c10d::ProcessGroup(group->getRank(), group->getSize()),
      group_(std::move(group)),
      ledger_(std::move(ledger)),
      for_hook_(for_hook) {}

template <class Start>
c10::intrusive_ptr<c10d::Work> CountingGroup::count(const std::vector<at::Tensor>& sent,
                                                    bool gradients,
                                                    const Start& start) {
  if (!gradients) {
    ledger_->add_other_bytes(bytes_of(sent));
    return start();
  }
  if (!for_hook_) {
    ledger_->add_bucket();
  }
  if (torch::autograd::get_current_graph_task_id() != -1) {
    // Comes before the callback in which the reducer waits, which it asks
    // for after its last bucket.
    torch::autograd::Engine::get_default_engine().queue_callback([ledger = ledger_] { ledger->compute_has_ended(); });
  }
  // A device's collectives end later than the host is told.
  const bool timed = std::all_of(sent.begin(), sent.end(), [](const at::Tensor& tensor) { return tensor.is_cpu(); });
  ledger_->begin_collective(bytes_of(sent), timed);
  const auto end = [ledger = ledger_, timed] {
    if (timed) {
      ledger->end_collective();
    }
  };
  try {
    auto work = start();
    work->getFuture()->addCallback([end](c10::ivalue::Future&) { end(); });
    return work;
  } catch (...) {
    end();
    throw;
  }
}

c10::intrusive_ptr<c10d::Work> CountingGroup::allreduce(std::vector<at::Tensor>& tensors,
                                                        const c10d::AllreduceOptions& options) {
  const bool gradients = for_hook_ || tensors[0].is_floating_point() || tensors[0].is_complex();
  return count(tensors, gradients, [&] { return group_->allreduce(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> CountingGroup::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                                  const c10d::AllreduceCoalescedOptions& options) {
  return count(tensors, for_hook_, [&] { return group_->allreduce_coalesced(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> CountingGroup::broadcast(std::vector<at::Tensor>& tensors,
                                                        const c10d::BroadcastOptions& options) {
  return count(tensors, for_hook_, [&] { return group_->broadcast(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> CountingGroup::reduce(std::vector<at::Tensor>& tensors,
                                                     const c10d::ReduceOptions& options) {
  return count(tensors, for_hook_, [&] { return group_->reduce(tensors, options); });
}

c10::intrusive_ptr<c10d::Work> CountingGroup::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                        std::vector<at::Tensor>& inputs,
                                                        const c10d::AllgatherOptions& options) {
  return count(inputs, for_hook_, [&] { return group_->allgather(outputs, inputs, options); });
}

c10::intrusive_ptr<c10d::Work> CountingGroup::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                             std::vector<std::vector<at::Tensor>>& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  std::vector<at::Tensor> sent;
  for (const auto& input : inputs) {
    sent.insert(sent.end(), input.begin(), input.end());
  }
  return count(sent, for_hook_, [&] { return group_->reduce_scatter(outputs, inputs, options); });
}

}  // namespace mezzo::distributed
