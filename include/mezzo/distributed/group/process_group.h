#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "mezzo/distributed/group/rank_environment.h"

namespace mezzo::distributed {

/// Options of ProcessGroup.
struct ProcessGroupOptions {
  /// The time that a rank waits for the others, at start and in each collective, before it fails.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(10);
  /// The device of tensors. Gloo always serves the CPU; NCCL serves CUDA devices.
  TORCH_ARG(c10::Device, device) = c10::Device(c10::kCPU);
  /// Compares dtype, shape and order of the collectives below between ranks, by one more collective
  /// on the CPU each. For debugging, as TORCH_DISTRIBUTED_DEBUG=DETAIL.
  TORCH_ARG(bool, check_collectives) = false;
};

/// The connected ranks of a run: a c10d::ProcessGroup that names the failed rank in its errors.
/// Each rank sends heartbeats to the common store. If a collective fails, `guard` and the
/// collectives here find the rank that failed by itself or has no heartbeat, and throw an error
/// that names it.
///
/// Every rank must call the same collectives in the same order. Not thread-safe. Collectives on the
/// CPU wait for their result. Collectives on a device are queued on the current stream, as NCCL's:
/// no one waits for them.
///
/// In a step that a GraphedStep records, NCCL collectives on device tensors become part of the
/// graph. A backend that works on the host, such as Gloo, is called between two graphs in each
/// replay. Collectives on the CPU, or with a result on the host, cannot be recorded.
///
/// Ranks may record at different times: the order of their collectives stays the same. Destroy
/// GraphedSteps before the group.
class ProcessGroup {
 public:
  /// Connects to the other ranks. A rank that waits for some seconds warns (TORCH_WARN).
  /// @throws c10::Error  after the timeout, naming the missing ranks, or the store that could not
  ///     be reached
  /// @throws c10::ValueError  for a CUDA device if LibTorch has no NCCL
  explicit ProcessGroup(const RankEnvironment& environment, const ProcessGroupOptions& options = {});

  /// Leaves immediately. Without an earlier `shutdown`, this ends collectives of other ranks with
  /// an error. If this rank hosts the store, it stays a few seconds longer, so that the others can
  /// read the cause.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// The rank of this process, in [0, size()).
  int rank() const { return environment_.rank; }
  /// The number of ranks.
  int size() const { return environment_.world_size; }
  /// The environment given to the constructor.
  const RankEnvironment& environment() const { return environment_; }
  /// The options given to the constructor.
  const ProcessGroupOptions& options() const { return options_; }
  /// The group for c10d's classes.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const { return group_; }

  /// Tensor collectives, with the results of torch.distributed. A tensor has the same dtype and
  /// shape on every rank, and is on the CPU or on `options().device()`. None is differentiable.
  /// @throws c10::ValueError  naming this rank, for an undefined or sparse tensor, another device,
  ///     or sizes that cannot be divided; with `check_collectives`, on all ranks, if their calls
  ///     differ

  /// Reduces `tensor` over the ranks, in place.
  void all_reduce(at::Tensor& tensor, c10d::ReduceOp op = c10d::ReduceOp::SUM);
  /// Copies `tensor` of rank `root` into `tensor` of the other ranks.
  void broadcast(at::Tensor& tensor, int root = 0);
  /// The tensors of all ranks, by rank.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);
  /// Part number `rank()` of the reduced tensor.
  /// @param tensor  [size() · N, …], @return [N, …]
  at::Tensor reduce_scatter(const at::Tensor& tensor, c10d::ReduceOp op = c10d::ReduceOp::SUM);
  /// Sends part i of `tensor` to rank i. The result holds the received parts, in the order of
  /// ranks.
  /// @param tensor  [sum of input_split_sizes, …], @return [sum of output_split_sizes, …]
  /// @param input_split_sizes  rows for each rank; empty: equal parts
  /// @param output_split_sizes  rows from each rank; empty: equal parts
  at::Tensor all_to_all(const at::Tensor& tensor,
                        std::vector<int64_t> output_split_sizes = {},
                        std::vector<int64_t> input_split_sizes = {});

  /// A group of some ranks, numbered in the order of `ranks`. Every rank of this group must make
  /// the same call. This group must outlive it; errors use the rank numbers of the outermost group.
  /// @return nullptr on ranks that are not in `ranks`
  /// @throws c10::ValueError  on all ranks, if `ranks` is empty, repeats a rank or names one that
  ///     does not exist
  std::unique_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);

  /// The string of each rank, by rank.
  std::vector<std::string> all_gather(const std::string& text);
  /// Waits until every rank has called it.
  void barrier();

  /// Whether `here` is true on any rank.
  bool any(bool here);

  /// Throws on all ranks if the values by name differ: "NAME differs between ranks: …". The message
  /// names the first rank that differs from rank 0, and both values.
  void check_same(const std::map<std::string, std::string>& values);

  /// Runs `work` on every rank, and throws on all ranks if it threw on one. The failed rank
  /// rethrows its error; the other ranks throw one that names the rank and repeats the message. For
  /// work without collectives, such as reading files.
  void all_or_none(const std::function<void()>& work);

  /// Runs `work`, which may call collectives, also within backward. If a collective fails, throws
  /// an error that names the failed rank. If `work` fails by itself, notifies the other ranks and
  /// rethrows.
  void guard(const std::function<void()>& work);

  /// Waits until `is_done()`, such as an event's `query()`. A collective that a graph replays has
  /// no timeout. If another rank is lost meanwhile, or the timeout passes, aborts the communicator
  /// of the device, and throws as `guard` does. Then no further collective of the device is
  /// possible. Polls at most 20,000 times a second.
  void wait(const std::function<bool()>& is_done);

  /// Ends the group regularly: waits until every rank has called it. Call it last, after `shutdown`
  /// of the subgroups. If rank 0 hosts the store, it stays until the other ranks have finished or
  /// have no heartbeat.
  void shutdown();

 private:
  ProcessGroup(ProcessGroup& parent, const std::vector<int>& ranks, int number);
  void connect();
  void meet();
  std::vector<int> wait_for_ranks(std::chrono::milliseconds at_most);
  bool hosts_store() const { return rank() == 0 && !environment_.launcher_hosts_store; }
  void keep_store_for_others() const;
  void wait_until_others_left();
  template <class Start>
  void in_place(const at::Tensor& tensor, const Start& start);
  std::vector<at::Tensor> gather(const at::Tensor& tensor);
  /// The number of a rank in the outermost group.
  int name_of(int other) const { return ranks_.empty() ? other : ranks_[static_cast<size_t>(other)]; }
  void check_tensor(const char* collective, const at::Tensor& tensor, bool same_shape = true);
  void check_divides(const char* collective, int64_t rows, std::vector<int64_t>& parts) const;
  bool knows_of_lost_rank();
  void abort();
  void announce_failure(const std::string& reason);
  [[noreturn]] void throw_blaming(const std::string& error);

  RankEnvironment environment_;
  ProcessGroupOptions options_;
  ProcessGroup* parent_ = nullptr;               // of a subgroup
  std::vector<int> ranks_;                       // of a subgroup, as the outermost group names them
  int subgroups_ = 0;                            // made so far
  c10::intrusive_ptr<c10d::Store> start_store_;  // shared with other groups of this start
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::unique_ptr<class Heartbeat> heartbeat_;
  std::future<bool> lost_rank_;              // asked for by `wait`
  std::vector<std::future<void>> aborting_;  // NCCL's end when no graph uses them any more
  bool all_know_ = false;                    // that the run fails, and why
  bool others_may_ask_ = false;              // why this rank does not answer any more
};

/// The maximum of `found_inf` over all ranks, for GradScalerOptions. All GradScalers then skip the
/// same steps and keep the same scale. Costs one collective over 8 bytes for every check of
/// gradients. `group` must outlive the scaler.
///
/// Needed if ranks have different gradients. With DistributedDataParallel it is not needed, because
/// gradients overflow on all ranks or on none.
std::function<void(at::Tensor& found_inf)> all_reduce_found_inf(ProcessGroup& group);

}  // namespace mezzo::distributed
