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

/// As torch.nn.parallel.DistributedDataParallel names them.
struct DistributedDataParallelOptions {
  /// Looks in each forward's output which parameters took part in it, and expects no
  /// gradients for the others.
  TORCH_ARG(bool, find_unused_parameters) = false;
  /// Promises that every step uses the same parameters, as often: unused ones cost nothing then,
  /// and a parameter may get several gradients in one backward, as under activation checkpointing.
  TORCH_ARG(bool, static_graph) = false;
  /// Gradients are views into the buckets that are sent: saves a copy of them in memory.
  TORCH_ARG(bool, gradient_as_bucket_view) = false;
  /// The size of a bucket in MiB; nullopt: 25, the first 1.
  TORCH_ARG(std::optional<double>, bucket_cap_mb);
  /// Rank 0's buffers are copied to the others at start and before each forward in training mode.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// Checks at start that all ranks have the same model, and copies rank 0's parameters
  /// and buffers to the others.
  TORCH_ARG(bool, init_sync) = true;
};

struct JoinOptions {
  /// Gradients are divided by the number of ranks there are, so that every batch weighs the same;
  /// false: by that of the ranks that still have batches.
  TORCH_ARG(bool, divide_by_initial_world_size) = true;
  /// Throws on every rank as soon as one has run out of batches.
  TORCH_ARG(bool, throw_on_early_termination) = false;
};

class NoSyncGuard;

/// The part of DistributedDataParallel that does not depend on the module's type. A module whose only child is the
/// wrapped one, named "module": names of parameters begin with "module.", as in Python.
class DistributedDataParallelBase : public torch::nn::Module {
 public:
  DistributedDataParallelBase(const DistributedDataParallelBase&) = delete;
  DistributedDataParallelBase& operator=(const DistributedDataParallelBase&) = delete;

  /// While the guard lives, backward passes of forward passes begun under it add to this rank's
  /// gradients only; the first backward afterwards reduces the sums. For gradient accumulation.
  [[nodiscard]] NoSyncGuard no_sync(bool enabled = true);

  /// Replaces the all-reduce of gradients. Once, before the first backward.
  /// @throws c10::ValueError  where one is there already.
  void register_comm_hook(CommHook hook);

  /// Runs `loop`, in which ranks may take different numbers of steps: one that has finished takes
  /// part in the others' steps with gradients of zero, and in the end takes over the parameters and
  /// buffers of one that ran last, but not what its optimizer keeps. Every forward pass costs one
  /// small collective more. `loop` must call no collectives besides this module's; no other rank
  /// steps without `join`. An exception of `loop` on one rank ends `join` on every rank, as in
  /// `ProcessGroup::guard`.
  /// @throws c10::ValueError  where a hook is registered, which divides by itself, and not the
  ///     initial world size asked for
  void join(const std::function<void()>& loop, const JoinOptions& options = {});

  /// Runs `loss.backward()`. If a rank fails meanwhile, every rank throws an error that names it. With a GradScaler:
  /// `ddp.backward(scaler.scale(loss))`.
  void backward(const at::Tensor& loss);

  CommStats comm_stats() const;

 protected:
  DistributedDataParallelBase(std::shared_ptr<torch::nn::Module> module,
                              ProcessGroup& group,
                              const DistributedDataParallelOptions& options);
  ~DistributedDataParallelBase() override;

  /// Runs `work` in the group's guard, or alone if gradients are off: then no other rank takes part.
  void guard(const std::function<void()>& work);
  void before_forward();
  /// Whether `after_forward` has to see the tensors of the output.
  bool inspects_output() const;
  /// `outputs`: those tensors, which it may replace.
  void after_forward(std::vector<at::Tensor>& outputs);
  [[noreturn]] static void throw_cannot_inspect(const char* type);

 private:
  friend class NoSyncGuard;
  struct Core;
  std::shared_ptr<Core> core_;
};

/// @see DistributedDataParallelBase::no_sync
class NoSyncGuard {
 public:
  [[nodiscard]] explicit NoSyncGuard(DistributedDataParallelBase& module, bool enabled = true);
  ~NoSyncGuard();
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  DistributedDataParallelBase& module_;
  bool previous_;
};

inline NoSyncGuard DistributedDataParallelBase::no_sync(bool enabled) { return NoSyncGuard(*this, enabled); }

/// Trains copies of one module on several ranks: each runs its own batches, and backward leaves the
/// mean of all ranks' gradients on every rank. Buckets of gradients are reduced while backward
/// still computes the rest (c10d::Reducer). If a rank fails in `forward` or `backward`, the others throw an error
/// that names it:
/// @code
/// mezzo::distributed::DistributedDataParallel model(net, group);
/// for (auto& [input, target] : my_share_of(batches)) {
///   optimizer.zero_grad();
///   model.backward(loss_fn(model(input), target));
///   optimizer.step();
/// }
/// @endcode
///
/// It is a torch::nn::Module: `train()`, `eval()`, `parameters()`, `torch::save(model, path)` reach the wrapped
/// module, and in a std::shared_ptr it can be registered in another module. Calls of `to` that make new tensors, such
/// as those to another device, come before it is made.
///
/// Autocast and GradScaler work as they are: gradients are the same on all ranks, so an overflow on
/// one skips the step on all. Gradients may be dropped between steps, with
/// `gradient_as_bucket_view` too.
///
/// Every rank must make it, call it and run backward alike; forward passes without gradients and in
/// eval mode are a rank's own affair. The module must not lose or gain parameters afterwards, nor
/// change which of them require gradients. `group` must outlive it. Not thread-safe.
///
/// @tparam ModuleType  the module's class (for a holder such as `Net`, `NetImpl`)
/// @see torch.nn.parallel.DistributedDataParallel. Differs: buffers are not broadcast in eval mode,
///     so one rank may evaluate alone; the whole model is compared at start, not only its shapes.
template <class ModuleType>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  /// Every rank must get here; collectives follow.
  /// @throws c10::ValueError  on all ranks where their models or options differ; where
  ///   nothing is to be trained.
  DistributedDataParallel(std::shared_ptr<ModuleType> module,
                          ProcessGroup& group,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(module, group, options), module_(std::move(module)) {}

  /// For module holders.
  template <class Holder>
    requires std::is_same_v<typename Holder::ContainedType, ModuleType>
  DistributedDataParallel(const Holder& module, ProcessGroup& group, const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), group, options) {}

  ModuleType& module() const { return *module_; }

  /// Calls the module's `forward`, and makes ready for the backward that follows. An error names the rank that
  /// failed, on all ranks; if gradients are off, only the rank that failed throws.
  /// @throws c10::ValueError  where unused parameters are to be found, or the graph is static, and
  ///     the output is of a type that is no TensorStructure.
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
