#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mezzo {

struct GraphedStepOptions {
  /// How many calls with inputs of new shapes run eagerly before one is recorded. They are steps
  /// like all others. At least 1: the first makes the optimizer's state and the loss scale.
  TORCH_ARG(int64_t, warmup_steps) = 3;
  /// How many recorded graphs are kept, at least 1. One more drops the one that was not used for
  /// the longest time, so that a run whose shapes change for good goes on being replayed; and
  /// shapes that come up now and then push no graph out, since warm-up comes first. Of shapes
  /// without a graph, the 1,024 that came up last are remembered; others warm up anew.
  TORCH_ARG(int64_t, max_graphs) = 8;
  /// false: every call runs eagerly.
  TORCH_ARG(bool, enabled) = true;
};

/// What the calls of a GraphedStep came to.
struct GraphedStepCounts {
  int64_t eager = 0;     ///< calls that ran as they stand
  int64_t replayed = 0;  ///< calls that replayed a graph, the ones that recorded it first among them
  int64_t recorded = 0;  ///< graphs
  int64_t dropped = 0;   ///< graphs that made room for others
};

/// A whole training step (forward, backward, unscaling, update) recorded into a graph of its
/// device and replayed: the CPU says one word where it launched thousands of kernels. Gives the
/// numbers that the step gives as it stands, to the bit.
///
/// @code
/// mezzo::GraphedStep step(torch::kCUDA, [&](const std::vector<torch::Tensor>& inputs) {
///   optimizer.zero_grad();
///   torch::Tensor loss;
///   {
///     mezzo::AutocastGuard autocast(torch::kCUDA, torch::kHalf);
///     loss = loss_fn(model->forward(inputs[0]), inputs[1]);
///   }
///   scaler.scale(loss).backward();
///   const auto result = scaler.step(optimizer);
///   scaler.update();
///   return std::vector{loss, result.found_inf()};  // to be read after the call
/// });
/// for (const auto& [texts, labels] : batches) {
///   losses.add_(step({texts, labels})[0]);
/// }
/// @endcode
///
/// There is one graph for each set of shapes, strides and dtypes of the inputs, of the caller's
/// autocast, gradient and inference modes, and of numbers that the caller passes along. The first calls of each run
/// eagerly, the next records and replays at once, so that every call is exactly one step. Graphs share one pool of
/// memory.
///
/// What a step does on the device is recorded; what its C++ decides is decided once, when it is
/// recorded. So a step that is recorded
/// - neither waits for the device nor reads from it: no `item()`, `cpu()`, `nonzero()`,
///   `StepResult::stepped()`, `GradScaler::get_scale()`, and no optimizer that needs the host's
///   word to skip a step, such as those of torch::optim under a GradScaler;
/// - makes its gradients itself: `zero_grad()` first, as above, or gradients that are there before
///   the first call and stay, zeroed in place. A gradient never goes from one call to the next
///   otherwise: the memory of a graph's gradients belongs to its pool;
/// - finds no loss alive whose forward ran outside of it, since autograd adds gradients on the
///   stream of the earliest such one;
/// - keeps no tensor that it made for the next call, and makes no state of an optimizer: the
///   warm-up's calls have made all of it;
/// - writes to none of its inputs, and returns tensors that the device computed;
/// - takes numbers that change, such as a learning rate or the step of mezzo's dropout, from
///   tensors on the device. Random numbers of LibTorch's generators go on as they would;
/// - does without what only the CPU would see: `GradScalerOptions().max_consecutive_skips` looks
///   at recorded steps no more;
/// - may call collectives of mezzo::distributed, with DistributedDataParallel, its hooks and ZeroRedundancyOptimizer.
///   Those of NCCL become part of the graph. Those of a backend that works on the host are called between two graphs in
///   each replay. The first two steps of a DistributedDataParallel are not recorded, and the first is no warm-up.
/// A step that waits, reads, replaces a tensor for the next call, or does what graphs cannot hold
/// ends in an error when it is recorded.
///
/// Between two calls
/// - values may change in place, and the next replay uses the new ones: weights, a learning rate
///   that is a tensor, the caller's own tensors. mezzo's loads copy in place: of an Optimizer
///   (`load_state_dict`, `load_torch_state_dict`, `torch::load`), a GradScaler's scale and
///   counters, MasterWeights, `LRScheduler::set_steps`.
/// - tensors may get other memory: by `set_data`, `to()` or `torch::load` of a module. A graph
///   remembers all memory that its operators read or write. If a tensor has moved or is gone, the
///   next call drops the graph, warms up and records again; a warning and `eager_reason` name the
///   tensor. Operators are LibTorch's and those that are registered with its dispatcher. After
///   moving memory that only a kernel launched by hand knows, call `reset()`.
/// - what the step's C++ decides stays as it was recorded until `reset()`: a learning rate that is a
///   number, the tensor that `set_lr` got, other hyperparameters, parameter groups, `train()` and
///   `eval()`, settings of LibTorch, a GradScaler's factors and intervals. Loading such numbers
///   changes no graph either. If C++ puts another tensor in the place of a tensor that somebody
///   keeps, the graph uses the kept one.
///
/// Runs eagerly, and says why (`eager_reason`), on devices without graphs, such as CPUs; under an
/// AutocastGuard with an op policy or a CastLog, a FiniteTracer or autograd's anomaly mode, when
/// opened around the call (inside of the step a log or a tracer is an error); and while the caller
/// records a graph. Such reasons are warned of once, except on a CPU.
///
/// An autocast region is best opened in the step. If one is open around the call, this thread keeps
/// no casts of weights from then on until the region ends. A weight that is used twice is cast
/// twice there.
///
/// The step runs on a stream of its own, before which and after which the caller's current stream
/// stands in order. A call that replays never syncs the device, except for a collective that the host makes; a call
/// that records may. Not thread-safe; what the step uses must outlive this object.
///
/// @see torch.cuda.graph, torch.cuda.make_graphed_callables (Python), neither of which LibTorch
///     has in C++. Differs: whole steps, several shapes, warm-up steps count.
class GraphedStep {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Step = std::function<Tensors(const Tensors& inputs)>;

  /// @param device  where the step computes
  /// @param step  called with the inputs of a call, on `device`; returns what the call returns
  /// @throws c10::ValueError  for options out of their range
  GraphedStep(c10::Device device, Step step, GraphedStepOptions options = {});
  ~GraphedStep();
  GraphedStep(const GraphedStep&) = delete;
  GraphedStep& operator=(const GraphedStep&) = delete;

  /// One step.
  /// @param inputs  of any dtypes and shapes, none requiring a gradient. Those of the CPU are
  ///     brought to the device without waiting: do not change one that is pinned meanwhile. Other
  ///     layouts than strided run eagerly.
  /// @param numbers  what else the step's C++ goes by, such as the length of the longest text: calls
  ///     with other numbers have a graph of their own
  /// @return what the step returned, without autograd's graph. Of a replayed step it is overwritten
  ///     by the next call, of whatever shapes: read it, copy it or add it up before.
  /// @throws c10::ValueError  for an input that requires a gradient
  /// @throws c10::OutOfMemoryError  where memory ran out
  /// @throws c10::Error  where the step cannot be recorded, in one line that says why. Nothing of
  ///     it was done on the device; the gradients that it left hold no numbers, and the scaler
  ///     stands where it was interrupted. Other calls work as ever.
  Tensors operator()(const Tensors& inputs, at::IntArrayRef numbers = {});

  /// Whether there are graphs of this device, in this mezzo. Thread-safe.
  static bool is_available(c10::Device device);

  /// Whether the last call replayed a graph.
  bool was_replayed() const { return was_replayed_; }
  /// Why the last call ran eagerly; empty if it did not.
  const std::string& eager_reason() const { return eager_reason_; }
  const GraphedStepCounts& counts() const { return counts_; }

  /// Drops all graphs. Warm-up begins anew, so that whatever has changed in model, optimizer or
  /// settings is recorded.
  void reset();

 private:
  class Graphs;
  struct Bucket;

  std::string why_eager(const Tensors& inputs) const;
  Tensors run(const Tensors& inputs, at::IntArrayRef numbers);
  Tensors run_eagerly(const Tensors& inputs, std::string reason);
  void drop_if_moved(Bucket& bucket);
  void record(Bucket& bucket, const Tensors& inputs);

  const c10::Device device_;
  const Step step_;
  const GraphedStepOptions options_;
  std::unique_ptr<Graphs> graphs_;  // null where the device has none
  bool was_replayed_ = false, has_warned_ = false;
  std::string eager_reason_;
  GraphedStepCounts counts_;
};

}  // namespace mezzo
