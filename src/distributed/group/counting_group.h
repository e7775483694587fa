#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "graph/step_recording.h"
#include "mezzo/distributed/group/comm_stats.h"

namespace mezzo::distributed {

/// A group on the backends of another. It counts all-reductions of floating-point tensors, and times those on the CPU.
class CountingGroup : public c10d::ProcessGroup {
 public:
  explicit CountingGroup(c10d::ProcessGroup& group);

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;

  CommStats stats() const;
  /// @param notes  of the recording that the step is part of, whose replays count; none: it is done now
  void begin_step(const StepRecording::Notes& notes);
  /// A hook reduced a bucket without this group, and backward waited for that.
  void add_blocked(double seconds);
  /// The rest of the step only waits.
  void compute_has_ended();

 private:
  struct Ledger;  // shared with collectives that are under way
  std::shared_ptr<Ledger> ledger_;
  StepRecording::Notes notes_;
};

}  // namespace mezzo::distributed
