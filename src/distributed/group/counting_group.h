#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "distributed/group/comm_ledger.h"

namespace mezzo::distributed {

/// Passes collectives on to another group, and writes into a ledger what went through.
class CountingGroup : public c10d::ProcessGroup {
 public:
  /// @param for_hook  takes all collectives for gradients'; else all-reductions of
  ///     floating point tensors only, and each of them for a bucket, as c10d::Reducer
  ///     makes them where it has no hook.
  CountingGroup(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<CommLedger> ledger, bool for_hook);

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override;

 private:
  template <class Start>
  c10::intrusive_ptr<c10d::Work> count(const std::vector<at::Tensor>& sent, bool gradients, const Start& start);

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<CommLedger> ledger_;
  bool for_hook_;
};

}  // namespace mezzo::distributed
