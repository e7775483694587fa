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

struct ProcessGroupOptions {
  /// How long a rank waits for the others, at start and in each collective, before it gives up.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::minutes(10);
  /// Where tensors live: Gloo serves the CPU in any case, NCCL CUDA devices.
  TORCH_ARG(c10::Device, device) = c10::Device(c10::kCPU);
  /// Compares dtype, shape and order of the collectives below between ranks, by one more collective on the CPU each.
  /// For debugging, as TORCH_DISTRIBUTED_DEBUG=DETAIL.
  TORCH_ARG(bool, check_collectives) = false;
};

/// The ranks of a run, connected: a c10d::ProcessGroup that can say which rank is to blame when it
/// breaks. Each rank beats a heart at the store where they met; when a collective fails, `guard`
/// and the collectives here look which rank has failed for a reason of its own or has no heartbeat,
/// and throw an error that names it.
///
/// Every rank must call the same collectives in the same order. Not thread-safe. Collectives on the CPU wait for their
/// result. Those on a device are work of the current stream, as those of NCCL are: nobody waits for them.
///
/// In a step that a GraphedStep records, collectives of NCCL on tensors of the device become part of the graph. A
/// backend that works on the host, such as Gloo, is called between two graphs in each replay. Collectives on the CPU,
/// and those that return a value to the host, cannot be recorded. Ranks may record at different times: the order of the
/// collectives that they execute stays the same. GraphedSteps must go before the group.
class ProcessGroup {
 public:
  /// Meets the other ranks. A rank that waits for some seconds says so in a warning (TORCH_WARN).
  /// @throws c10::Error  within the timeout, naming the ranks that did not come, or the store
  /// that could not be reached.
  /// @throws c10::ValueError  for a CUDA device where LibTorch has no NCCL.
  explicit ProcessGroup(const RankEnvironment& environment, const ProcessGroupOptions& options = {});

  /// Leaves at once, which ends the collectives of others with an error unless `shutdown`
  /// came before. Where this rank hosts the store, it stays a few seconds more, so that the
  /// others can see what happened.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return environment_.rank; }
  int size() const { return environment_.world_size; }
  const RankEnvironment& environment() const { return environment_; }
  const ProcessGroupOptions& options() const { return options_; }
  /// What c10d's own classes take.
  const c10::intrusive_ptr<c10d::ProcessGroup>& c10d() const { return group_; }

  /// Tensor collectives, with the results of torch.distributed. A tensor has the same dtype and shape on every rank,
  /// and lies on the CPU or on `options().device()`. None is differentiable.
  /// @throws c10::ValueError  naming this rank, for an undefined or sparse tensor, another device, or sizes that
  ///     cannot be divided; with `check_collectives`, on all ranks, if their calls differ

  /// Reduces the ranks' `tensor` in place.
  void all_reduce(at::Tensor& tensor, c10d::ReduceOp op = c10d::ReduceOp::SUM);
  /// Copies rank `root`'s `tensor` into the other ranks' `tensor`.
  void broadcast(at::Tensor& tensor, int root = 0);
  /// The tensors of all ranks, by rank.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);
  /// Part number `rank()` of the reduced tensor.
  /// @param tensor  [size() · N, …], @return [N, …]
  at::Tensor reduce_scatter(const at::Tensor& tensor, c10d::ReduceOp op = c10d::ReduceOp::SUM);
  /// Sends part i of `tensor` to rank i. The result has the parts that came, in the order of ranks.
  /// @param tensor  [sum of input_split_sizes, …], @return [sum of output_split_sizes, …]
  /// @param input_split_sizes  rows for each rank; empty: equal parts
  /// @param output_split_sizes  rows from each rank; empty: equal parts
  at::Tensor all_to_all(const at::Tensor& tensor,
                        std::vector<int64_t> output_split_sizes = {},
                        std::vector<int64_t> input_split_sizes = {});

  /// A group of some ranks, which are numbered in the order of `ranks`. Every rank of this group must call it alike.
  /// This group must outlive it; errors name ranks of the group that has all.
  /// @return nullptr on ranks that are not in `ranks`
  /// @throws c10::ValueError  on all ranks, if `ranks` is empty, names a rank twice or one that does not exist
  std::unique_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);

  /// Each rank's string, by rank.
  std::vector<std::string> all_gather(const std::string& text);
  void barrier();

  /// Whether `here` holds on any rank.
  bool any(bool here);

  /// Throws on all ranks where they do not give the same values by name: "NAME differs between
  /// ranks: …", naming the first rank that differs from rank 0, and both values.
  void check_same(const std::map<std::string, std::string>& values);

  /// Runs `work` on every rank, and throws on all of them where it threw on one: there its own
  /// error, on the others one that names the rank and repeats the message. For work that calls no
  /// collectives, such as reading files.
  void all_or_none(const std::function<void()>& work);

  /// Runs `work`, which may call collectives, also within backward. Where one of them fails,
  /// throws an error that names the rank to blame; where `work` fails by itself, lets the
  /// other ranks know and rethrows.
  void guard(const std::function<void()>& work);

  /// Waits until `is_done()`, such as an event's `query()`. A collective that a graph replays has no timeout: if
  /// another rank is lost meanwhile, or the timeout passes, aborts the communicator of the device, and throws as
  /// `guard` does. Then no further collective of the device is possible. Asks 20,000 times a second at most.
  void wait(const std::function<bool()>& is_done);

  /// Ends the group in good order: waits until every rank is here. Call last, after those of its subgroups. Where rank
  /// 0 hosts the store, it stays until the others need that no more, or have no heartbeat.
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
  /// A rank, as the outermost group names it.
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

/// The largest of all ranks' `found_inf`, for GradScalerOptions: all GradScalers then skip the same steps and keep the
/// same scale. One collective over 8 bytes for every check of gradients. Needed for
/// gradients that ranks divide among them or keep to themselves; DistributedDataParallel's overflow on all ranks or
/// on none. `group` must outlive the scaler.
std::function<void(at::Tensor& found_inf)> all_reduce_found_inf(ProcessGroup& group);

}  // namespace mezzo::distributed
