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

/// Adds up tensors of the ranks of one host through a few megabytes of shared memory that stay in
/// the cache: each tensor is read once and written once, no byte goes through a socket. Each rank
/// sums its share of a chunk, in float32 and in the order of ranks, so all get the same bits. Half
/// tensors are rounded once, at the end.
///
/// Collective: every rank must bring tensors of the same sizes in the same order. Not thread-safe.
class SharedMemoryAllReduce {
 public:
  /// Where the ranks are all on this host and see each other's processes, as within one
  /// container. Collective; the same answer on all. The memory has no name in any file system,
  /// and goes with the last rank.
  /// @return nullptr where they do not.
  static std::unique_ptr<SharedMemoryAllReduce> create(ProcessGroup& group);

  ~SharedMemoryAllReduce();
  SharedMemoryAllReduce(const SharedMemoryAllReduce&) = delete;
  SharedMemoryAllReduce& operator=(const SharedMemoryAllReduce&) = delete;

  /// Replaces `tensor` by the sum of the ranks': float32, float16 or bfloat16, dense, on the
  /// CPU, of one size everywhere.
  /// @throws c10::ValueError  for any other tensor.
  /// @throws c10::DistBackendError  where another rank is gone, or has not come
  ///   within the group's timeout.
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

/// A hook for DistributedDataParallel that gives the sum, as `allreduce_sum_hook`, in float32 or
/// half. Where ranks have a processor each, nothing could go on beside a computing rank, so it
/// waits for the last bucket of a backward and adds up all of them then.
CommHook shared_memory_hook(std::unique_ptr<SharedMemoryAllReduce> all_reduce);

}  // namespace mezzo::distributed
