#pragma once

#include <c10/core/GradMode.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

#include "distributed/group/counting_group.h"
#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"

namespace mezzo::distributed {

/// The parameters to train, each tensor once.
struct TrainedParameters {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  std::vector<bool> sparse;

  /// @throws c10::ValueError  if there is nothing.
  explicit TrainedParameters(const torch::nn::Module& module);
};

/// Copies `root`'s tensors to the other ranks, in place, many in a message.
void broadcast(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::vector<at::Tensor> tensors, int root);

std::vector<at::Tensor> parameters_and_buffers(const torch::nn::Module& module, bool with_buffers);

struct JoinRound;

/// The implementation of DistributedDataParallel. The parts of `join` are in distributed_data_parallel_join.cpp.
struct DistributedDataParallelBase::Core : std::enable_shared_from_this<Core> {
  Core(std::shared_ptr<torch::nn::Module> the_module,
       ProcessGroup& the_group,
       const DistributedDataParallelOptions& the_options);

  bool reduces() const { return syncs && c10::GradMode::is_enabled(); }
  bool copies_buffers() const { return module->is_training() && copies_buffers_next && has_buffers; }
  void copy_buffers(int root);
  void rebuild_buckets();
  /// Has backward add gradients on the current stream, which may be another one than in the step before.
  void follow_stream();
  /// Whether the step is being recorded, for a backend that works on the host: buckets are then reduced after backward,
  /// between two graphs.
  bool reduces_between_graphs() const;
  void reduce_between_graphs();
  /// Within join: tells the others what this rank is about to do; returns the
  /// rank whose buffers to copy.
  int agree_on_step(bool reduces_now, bool copies_buffers_now);
  /// Takes part in a step of the others.
  void take_part(const JoinRound& round);
  void delay_reduction();

  std::shared_ptr<torch::nn::Module> module;
  ProcessGroup& group;
  DistributedDataParallelOptions options;
  TrainedParameters trained;
  c10::intrusive_ptr<CountingGroup> counting_group;  // of the reducer and its hook
  std::unique_ptr<c10d::Reducer> reducer;
  bool has_buffers = false;         // that are to be copied
  bool syncs = true;                // no no_sync
  bool copies_buffers_next = true;  // once for each reduction
  bool has_hook = false;
  bool has_reduced = false;           // this rank itself
  bool delays_reduction = false;      // static graph: has seen its first backward
  bool awaits_backward = false;       // after which it reduces between graphs
  std::optional<c10::Stream> stream;  // of accelerators: where backward adds gradients
  std::optional<JoinOptions> joining;
};

}  // namespace mezzo::distributed
