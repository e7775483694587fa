#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "mezzo/amp/visit_tensors.h"
#include "mezzo/distributed/data_parallel/comm_hooks.h"
#include "mezzo/distributed/group/comm_stats.h"
#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// Options of DistributedDataParallel, with the names of torch.nn.parallel.DistributedDataParallel.
struct DistributedDataParallelOptions {
  /// Finds in each forward's output the parameters that took part in it, and expects no gradients
  /// for the other parameters.
  TORCH_ARG(bool, find_unused_parameters) = false;
  /// Declares that every step uses the same parameters equally often. Unused parameters then cost
  /// nothing, and a parameter may get several gradients in one backward, as with activation
  /// checkpointing.
  TORCH_ARG(bool, static_graph) = false;
  /// Gradients are views into the buckets that are sent, which saves one copy of them in memory.
  TORCH_ARG(bool, gradient_as_bucket_view) = false;
  /// The size of a bucket in MiB; nullopt: 25, the first 1.
  TORCH_ARG(std::optional<double>, bucket_cap_mb);
  /// Rank 0's buffers are copied to the other ranks at start, and before each forward in training
  /// mode.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// Checks at start that all ranks have the same model, and copies rank 0's parameters and buffers
  /// to the other ranks.
  TORCH_ARG(bool, init_sync) = true;
};

/// Options of DistributedDataParallelBase::join.
struct JoinOptions {
  /// true: gradients are divided by the number of all ranks, so that every batch has the same
  /// weight. false: by the number of ranks that still have batches.
  TORCH_ARG(bool, divide_by_initial_world_size) = true;
  /// Throws on every rank when one rank has no more batches.
  TORCH_ARG(bool, throw_on_early_termination) = false;
};

class NoSyncGuard;

/// The part of DistributedDataParallel that is independent of the module's type. Its only child is
/// the wrapped module, named "module": names of parameters begin with "module.", as in Python.
class DistributedDataParallelBase : public torch::nn::Module {
 public:
  DistributedDataParallelBase(const DistributedDataParallelBase&) = delete;
  DistributedDataParallelBase& operator=(const DistributedDataParallelBase&) = delete;

  /// During the guard's lifetime, backward adds only to this rank's gradients, for forward passes
  /// begun under the guard. The first backward afterwards reduces the sums. For gradient
  /// accumulation.
  [[nodiscard]] NoSyncGuard no_sync(bool enabled = true);

  /// Replaces the all-reduce of gradients. Call it at most once, before the first backward.
  /// @throws c10::ValueError  if a hook is registered already
  void register_comm_hook(CommHook hook);

  /// Runs `loop`, in which ranks may take different numbers of steps. A rank that has finished
  /// takes part in the others' steps with gradients of zero. In the end it copies the parameters
  /// and buffers of a rank that ran last, but not the optimizer's state. Every forward pass costs
  /// one more small collective.
  ///
  /// `loop` must call only this module's collectives, and all ranks must step inside `join`. A
  /// GraphedStep in `loop` must not record or replay steps. An exception of `loop` on one rank ends
  /// `join` on every rank, as in `ProcessGroup::guard`.
  /// @throws c10::ValueError  if a hook is registered, which divides by itself, and
  ///     `divide_by_initial_world_size` is false
  void join(const std::function<void()>& loop, const JoinOptions& options = {});

  /// Runs `loss.backward()`. If a rank fails meanwhile, every rank throws an error that names it.
  /// With a GradScaler: `ddp.backward(scaler.scale(loss))`.
  void backward(const at::Tensor& loss);

  /// Bytes and times of this rank's reductions so far.
  CommStats comm_stats() const;

 protected:
  /// @param group  must outlive this object
  DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module,
                              ProcessGroup& group,
                              const DistributedDataParallelOptions& options);
  ~DistributedDataParallelBase() override;

  /// Runs `work` in the group's guard. If gradients are off, runs it without the guard, because no
  /// other rank takes part.
  void guard(const std::function<void()>& work);
  /// Copies buffers, if asked, before a forward.
  void before_forward();
  /// Whether `after_forward` needs the tensors of the output.
  bool inspects_output() const;
  /// Prepares the backward.
  /// @param outputs  tensors of the output, which it may replace
  void after_forward(std::vector<at::Tensor>& outputs);
  /// @throws c10::ValueError  for an output type whose tensors cannot be found
  [[noreturn]] static void throw_cannot_inspect(const char* type);

 private:
  friend class NoSyncGuard;
  struct Core;
  std::shared_ptr<Core> core_;
};

/// @see DistributedDataParallelBase::no_sync
class NoSyncGuard {
 public:
  /// @param enabled  false: does nothing
  [[nodiscard]] explicit NoSyncGuard(DistributedDataParallelBase& module, bool enabled = true);
  ~NoSyncGuard();
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  DistributedDataParallelBase& module_;
  bool previous_;
};

inline NoSyncGuard DistributedDataParallelBase::no_sync(bool enabled) { return NoSyncGuard(*this, enabled); }

/// Trains copies of one module on several ranks. Each rank runs different batches, and backward
/// leaves the mean of all ranks' gradients on every rank. Buckets of gradients are reduced while
/// backward still computes the rest (c10d::Reducer). If a rank fails in `forward` or `backward`,
/// the other ranks throw an error that names it:
/// @code
/// mezzo::distributed::DistributedDataParallel model(net, group);
/// for (auto& [input, target] : my_share_of(batches)) {
///   optimizer.zero_grad();
///   model.backward(loss_fn(model(input), target));
///   optimizer.step();
/// }
/// @endcode
///
/// It is a torch::nn::Module: `train()`, `eval()`, `parameters()` and `torch::save(model, path)`
/// reach the wrapped module. In a std::shared_ptr it can be registered in another module. Calls of
/// `to` that make new tensors, such as a move to another device, must come before its construction.
///
/// Autocast and GradScaler need no change. Gradients are equal on all ranks, so an overflow on one
/// rank skips the step on all. Gradients may be dropped between steps, also with
/// `gradient_as_bucket_view`.
///
/// Every rank must construct it, call it and run backward in the same order. Forward passes without
/// gradients or in eval mode may differ between ranks. Afterwards the module must neither lose or
/// gain parameters, nor change their `requires_grad`. `group` must outlive it. Not thread-safe.
///
/// @tparam ModuleType  the module's class (for a holder such as `Net`, `NetImpl`)
/// @see torch.nn.parallel.DistributedDataParallel. Differs: buffers are not broadcast in eval mode,
///     so one rank may evaluate alone; the whole model is compared at start, not only its shapes.
template <class ModuleType>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  /// Collective: every rank must call it.
  /// @throws c10::ValueError  on all ranks, if their models or options differ; if no parameter
  ///     requires a gradient
  DistributedDataParallel(std::shared_ptr<ModuleType> module,
                          ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(module, group, options), module_(std::move(module)) {}

  /// For module holders.
  template <class Holder>
    requires std::is_same_v<typename Holder::ContainedType, ModuleType>
  DistributedDataParallel(const Holder& module, ProcessGroup& group, const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), group, options) {}

  /// The wrapped module.
  ModuleType& module() const { return *module_; }

  /// Calls the module's `forward`, and prepares its backward. An error names the failed rank, on
  /// all ranks. If gradients are off, only the failed rank throws.
  /// @throws c10::ValueError  with `find_unused_parameters` or `static_graph`, if the output's type
  ///     is not a TensorStructure
  template <class... Args>
  auto forward(Args&&... args) {
    std::optional<std::remove_cvref_t<decltype(module_->forward(std::forward<Args>(args)...))>> output;
    this->guard([&] {
      this->before_forward();
      output.emplace(module_->forward(std::forward<Args>(args)...));
      prepare_backward(*output);
    });
    return *std::move(output);
  }

  /// The same as `forward`.
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

 private:
  template <class Output>
  void prepare_backward(Output& output) {
    std::vector<at::Tensor> tensors;
    if (this->inspects_output()) {
      if constexpr (TensorStructure<Output>) {
        for_each_tensor(output, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
      } else {
        this->throw_cannot_inspect(typeid(Output).name());
      }
    }
    this->after_forward(tensors);
    if constexpr (TensorStructure<Output>) {
      if (!tensors.empty()) {
        auto next = tensors.begin();
        for_each_tensor(output, [&](at::Tensor& tensor) { tensor = *next++; });
      }
    }
  }

  std::shared_ptr<ModuleType> module_;
};

/// For `torch::save` and `torch::load`.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const DistributedDataParallelBase& module);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           DistributedDataParallelBase& module);

template <class Holder, class... Rest>
  requires requires { typename Holder::ContainedType; }
DistributedDataParallel(const Holder&, Rest&&...) -> DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace mezzo::distributed
