#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mezzo/distributed/data_parallel/comm_hooks.h"
#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// Adds tensors of the ranks of one host through a few megabytes of shared memory that stay in the
/// cache. Each tensor is read once and written once; no byte passes a socket. Each rank sums its
/// share of a chunk, in float32 and in the order of ranks, so all ranks get bit-identical sums.
/// Half tensors are rounded once, at the end.
///
/// Collective: every rank must pass tensors of the same sizes in the same order. Not thread-safe.
class SharedMemoryAllReduce {
 public:
  /// Creates the shared memory, if all ranks are on this host and see each other's processes, as
  /// within one container. Collective; the result is the same on all ranks. The memory has no name
  /// in any file system, and is freed with the last rank.
  /// @return nullptr if the ranks cannot share memory
  static std::unique_ptr<SharedMemoryAllReduce> create(ProcessGroup& group);

  ~SharedMemoryAllReduce();
  SharedMemoryAllReduce(const SharedMemoryAllReduce&) = delete;
  SharedMemoryAllReduce& operator=(const SharedMemoryAllReduce&) = delete;

  /// Replaces `tensor` by the sum over the ranks. It must be float32, float16 or bfloat16, dense,
  /// on the CPU, and of one size on all ranks.
  /// @throws c10::ValueError  for any other tensor
  /// @throws c10::DistBackendError  if another rank has ended, or has not called within the group's
  ///     timeout
  void sum(at::Tensor& tensor);

 private:
  struct Region;
  SharedMemoryAllReduce(ProcessGroup& group, Region* region);
  void wait_for_all(uint32_t round);
  void wait_for(int rank, uint32_t round);
  float* slot(int rank, uint32_t round) const;
  float* result(uint32_t round) const;

  int rank_, size_;
  std::chrono::milliseconds timeout_;
  Region* region_;
  std::vector<int> processes_;  // pidfds of the ranks; -1 for this one
  uint32_t round_ = 0;          // chunks so far, on all ranks alike
};

/// A hook for DistributedDataParallel that returns the sum, as `allreduce_sum_hook`, in float32 or
/// half. Each rank occupies its processor, so communication could not overlap with computation.
/// Therefore it waits for the last bucket of a backward and then adds all buckets.
CommHook shared_memory_hook(std::unique_ptr<SharedMemoryAllReduce> all_reduce);

}  // namespace mezzo::distributed
