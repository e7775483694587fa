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

/// Options of GraphedStep.
struct GraphedStepOptions {
  /// The number of calls with inputs of new shapes that run eagerly before one is recorded. They
  /// are normal steps. At least 1: the first makes the optimizer's state and the loss scale.
  TORCH_ARG(int64_t, warmup_steps) = 3;
  /// The number of recorded graphs to keep, at least 1. A further graph replaces the least recently
  /// used one, so a run whose shapes change permanently is still replayed. Rare shapes replace no
  /// graph, because warm-up comes first. The last 1,024 shapes without a graph are remembered;
  /// others warm up again.
  TORCH_ARG(int64_t, max_graphs) = 8;
  /// Whether a warning names `max_graphs` when a graph is replaced for the first time.
  TORCH_ARG(bool, warn_on_drop) = true;
  /// false: every call runs eagerly.
  TORCH_ARG(bool, enabled) = true;
};

/// The calls of a GraphedStep, counted.
struct GraphedStepCounts {
  int64_t eager = 0;     ///< calls that ran eagerly
  int64_t replayed = 0;  ///< calls that replayed a graph, including calls that first recorded it
  int64_t recorded = 0;  ///< graphs
  int64_t dropped = 0;   ///< graphs that were replaced by others
};

/// Records a whole training step (forward, backward, unscaling, update) into a graph of its device,
/// and replays it. One launch then replaces thousands of kernel launches. The results are
/// bit-identical to the eager step.
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
/// There is one graph for each combination of:
/// * shapes, strides and dtypes of the inputs,
/// * the caller's autocast, gradient and inference modes,
/// * the numbers that the caller passes.
///
/// The first calls of each combination run eagerly. The next call records a graph and replays it
/// immediately, so every call is exactly one step. Graphs share one pool of memory.
///
/// The device work of a step is recorded. Decisions of its C++ code are made once, during
/// recording. Therefore a recorded step must follow these rules:
/// * It does not wait for the device or read from it. It calls no `item()`, `cpu()`, `nonzero()`,
///   `StepResult::stepped()` or `GradScaler::get_scale()`. Its optimizer decides skips on the
///   device, unlike torch::optim's optimizers under a GradScaler.
/// * It makes its gradients: either it calls `zero_grad()` first, as above, or the gradients exist
///   before the first call, stay, and are zeroed in place. Otherwise no gradient is kept between
///   calls, because a graph's gradients belong to its memory pool.
/// * No loss from a forward outside the step is alive. Autograd would add gradients on the stream
///   of the earliest such loss.
/// * It keeps no tensor that it made for the next call, and makes no optimizer state. The warm-up
///   calls make all state.
/// * It does not write to its inputs, and returns tensors that the device computed.
/// * It reads changing numbers from tensors on the device, such as a learning rate or the step of
///   mezzo's dropout. Random numbers of LibTorch's generators continue normally.
/// * It needs no check on the CPU: `GradScalerOptions().max_consecutive_skips` ignores recorded
///   steps.
/// * It may call collectives of mezzo::distributed, with DistributedDataParallel, its hooks and
///   ZeroRedundancyOptimizer. Collectives of NCCL become part of the graph. Collectives of a
///   backend on the host are called between two graphs in each replay. The first two steps of a
///   DistributedDataParallel are not recorded, and the first does not count as warm-up. Recording and
///   replaying throw an error within its `join`.
///
/// Recording throws an error if the step waits, reads, replaces a tensor for the next call, or does
/// work that graphs cannot hold.
///
/// Between two calls:
/// * Values may change in place: weights, a learning rate in a tensor, the caller's tensors. The
///   next replay uses the new values. All loads of mezzo copy in place: an Optimizer's
///   `load_state_dict`, `load_torch_state_dict` and `torch::load`, a GradScaler's scale and
///   counters, MasterWeights, and `LRScheduler::set_steps`.
/// * Tensors may get other memory, by `set_data`, `to()` or `torch::load` of a module. A graph
///   remembers all memory that its operators read or write. These are all operators of LibTorch's
///   dispatcher. If a tensor has moved or is gone, the next call drops the graph, warms up and
///   records again. A warning and `eager_reason` name the tensor. If you move memory that only a
///   manually launched kernel uses, call `reset()`.
/// * Decisions of the step's C++ code stay as recorded until `reset()`. These are a learning rate
///   as a number, the tensor given to `set_lr`, other hyperparameters, parameter groups, `train()`
///   and `eval()`, LibTorch's settings, and a GradScaler's factors and intervals. Loading such
///   numbers changes no graph. If C++ code replaces a kept tensor by another, the graph uses the
///   kept one.
///
/// Runs eagerly in three cases, and gives the reason in `eager_reason`.
/// * On devices without graphs, such as CPUs.
/// * If an AutocastGuard with an op policy or a CastLog, a FiniteTracer or autograd's anomaly mode
///   is open around the call. A log or a tracer inside the step is an error.
/// * While the caller records a graph.
///
/// Each reason is warned of once, except on a CPU.
///
/// Open an autocast region inside the step. If a region is open around the call, this thread keeps
/// no casts of weights until the region ends. A weight that is used twice is then cast twice.
///
/// The step runs on a separate stream, ordered before and after the caller's current stream. A call
/// that replays never syncs the device, except for a collective on the host. A call that records
/// may sync. Not thread-safe. All objects that the step uses must outlive this object.
///
/// @see torch.cuda.graph, torch.cuda.make_graphed_callables (Python); LibTorch has neither in C++.
///     Differs: whole steps, several shapes, warm-up steps count.
class GraphedStep {
 public:
  /// Inputs or results of a step.
  using Tensors = std::vector<at::Tensor>;
  /// The type of a step.
  using Step = std::function<Tensors(const Tensors& inputs)>;

  /// @param device  the device of the step
  /// @param step  called with the inputs of a call, on `device`; its result is the call's result
  /// @throws c10::ValueError  for options out of their range
  GraphedStep(c10::Device device, Step step, GraphedStepOptions options = {});
  ~GraphedStep();
  GraphedStep(const GraphedStep&) = delete;
  GraphedStep& operator=(const GraphedStep&) = delete;

  /// Runs one step.
  /// @param inputs  Of any dtypes and shapes, none requiring a gradient. CPU inputs are copied to
  ///     the device without waiting: do not change a pinned input meanwhile. Layouts other than
  ///     strided run eagerly.
  /// @param numbers  other values on which the step's C++ code depends, such as the length of the
  ///     longest text; each combination of numbers has a graph
  /// @return The results of the step, without autograd's graph. Results of a replayed step are
  ///     overwritten by the next call, of any shapes: read, copy or sum them first.
  /// @throws c10::ValueError  for an input that requires a gradient
  /// @throws c10::OutOfMemoryError  if memory ran out
  /// @throws c10::Error  If the step cannot be recorded, with one line that gives the reason. The
  ///     device has done nothing then. Gradients left by the step hold no numbers, and the scaler
  ///     stays in the stage of the interruption. Other calls still work.
  Tensors operator()(const Tensors& inputs, at::IntArrayRef numbers = {});

  /// Whether this build of mezzo has graphs for this device. Thread-safe.
  static bool is_available(c10::Device device);

  /// Whether the last call replayed a graph.
  bool was_replayed() const { return was_replayed_; }
  /// The reason why the last call ran eagerly; empty if it did not.
  const std::string& eager_reason() const { return eager_reason_; }
  /// Counts of the calls so far.
  const GraphedStepCounts& counts() const { return counts_; }

  /// Drops all graphs. Warm-up starts again, so that all changes in model, optimizer or settings
  /// are recorded.
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
  std::unique_ptr<Graphs> graphs_;  // null if the device has none
  bool was_replayed_ = false, has_warned_ = false;
  std::string eager_reason_;
  GraphedStepCounts counts_;
};

}  // namespace mezzo
