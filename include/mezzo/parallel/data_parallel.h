#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/arg.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/amp/visit_tensors.h"

namespace mezzo {

struct DataParallelOptions {
  /// One replica on each; the module lies on the first. Empty: all CUDA devices. One may be named
  /// several times. A device without an index is the current one of its type.
  TORCH_ARG(std::vector<c10::Device>, devices);
  /// Device of the output; nullopt: the first device.
  TORCH_ARG(std::optional<c10::Device>, output_device);
  /// The dimension along which batches are divided.
  TORCH_ARG(int64_t, dim) = 0;
};

namespace detail {

using Tensors = std::vector<at::Tensor>;

/// The part of DataParallel that does not depend on the module's type, with the steps of torch.nn.parallel.
class DataParallelBase {
 protected:
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;
  using MakeReplica = std::function<std::shared_ptr<torch::nn::Module>(c10::Device)>;

  DataParallelBase(std::shared_ptr<torch::nn::Module> module, DataParallelOptions options, MakeReplica make_replica);

  /// The tensors in equal parts, by part, as `Tensor::chunk` makes them: one for each device at most.
  std::vector<Tensors> scatter(const Tensors& tensors) const;
  /// The module and copies of it as it is now, whose parameters are functions of the module's. A copy is used again
  /// when no graph needs it any more.
  Modules replicate(size_t count);
  /// Calls `work` with each number below `count`, on threads that have this one's state.
  void parallel_apply(size_t count, const std::function<void(size_t)>& work) const;
  /// Joins the parts of each tensor. Those without dimensions become a vector.
  Tensors gather(const std::vector<Tensors>& parts) const;

 private:
  std::shared_ptr<torch::nn::Module> make(c10::Device device) const;

  std::shared_ptr<torch::nn::Module> module_;
  DataParallelOptions options_;
  MakeReplica make_replica_;
  std::vector<Modules> made_;  // by device
};

[[noreturn]] void throw_not_cloneable(const torch::nn::Module& module, const std::exception& error);

template <class Structure>
Tensors tensors_of(Structure& structure) {
  Tensors tensors;
  for_each_tensor(structure, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

template <class Structure>
void set_tensors(Structure& structure, const Tensors& tensors) {
  auto next = tensors.begin();
  for_each_tensor(structure, [&](at::Tensor& tensor) { tensor = *next++; });
}

}  // namespace detail

/// Runs a module on several devices of one process: each gets a replica on a thread of its own, and
/// its part of the batch. The outputs are joined, and backward leaves the gradients of
/// all replicas on the module's own parameters. `mezzo::distributed::DistributedDataParallel`, with several processes,
/// is faster.
///
/// Autocast, its op policy and log, grad mode, the current streams of all devices and ModuleScope hold in the replicas
/// as on the calling thread. Replica 0 is the module itself: its buffers (running statistics) are updated from the
/// first part of the batch; updates of the other replicas' buffers are dropped, as in PyTorch. Not thread-safe. CPU
/// replicas draw from one generator, in no fixed order: dropout on them is not reproducible. Tested
/// on CPUs and on simulated accelerators; never run on several GPUs.
///
/// @code
/// mezzo::DataParallel model(net, mezzo::DataParallelOptions().devices({{torch::kCUDA, 0}, {torch::kCUDA, 1}}));
/// const auto loss = loss_fn(model(input), target);
/// @endcode
///
/// @tparam Module  the module's class (for a holder such as `Net`, `NetImpl`). Its `forward` is
///     called concurrently on several objects.
/// @see torch.nn.DataParallel. Differs: runs on CPU devices too; batches of different sizes are an
///     error; replicas are kept from call to call, with the members other than parameters, buffers and training mode
///     that they had when they were made.
template <class Module>
class DataParallel : public detail::DataParallelBase {
 public:
  /// @param make_replica  makes a module like this one on a device, for modules without `clone`. Its
  ///   weights are set afterwards.
  /// @throws c10::ValueError  for no device, or a module that is not on the first; at the first
  ///     call, for one that cannot be cloned.
  explicit DataParallel(std::shared_ptr<Module> module,
                        const DataParallelOptions& options = {},
                        std::function<std::shared_ptr<Module>(c10::Device)> make_replica = nullptr)
      : DataParallelBase(module,
                         options,
                         make_replica ? MakeReplica(std::move(make_replica))
                                      : MakeReplica([original = module.get()](c10::Device device) {
                                          return clone(*original, device);
                                        })),
        module_(std::move(module)) {}

  /// For module holders.
  template <class Holder>
    requires std::is_same_v<typename Holder::ContainedType, Module>
  explicit DataParallel(const Holder& module,
                        const DataParallelOptions& options = {},
                        std::function<std::shared_ptr<Module>(c10::Device)> make_replica = nullptr)
      : DataParallel(module.ptr(), options, std::move(make_replica)) {}

  Module& module() const { return *module_; }

  /// Calls the replicas' `forward`. Tensors among the arguments, in containers too, are
  /// divided; all else is copied.
  /// @throws c10::ValueError  where no argument is a tensor, or their sizes differ; what a replica
  ///     throws, with its number and device added.
  template <TensorStructure... Args>
  auto forward(const Args&... args) {
    using Output = std::remove_cvref_t<decltype(std::declval<Module&>().forward(std::declval<Args&>()...))>;
    static_assert(TensorStructure<Output>,
                  "DataParallel cannot join this output: see TensorStructure for how to teach it");
    std::tuple<Args...> all(args...);
    const auto inputs = this->scatter(detail::tensors_of(all));
    const auto replicas = this->replicate(inputs.size());
    std::vector<std::optional<Output>> outputs(inputs.size());
    this->parallel_apply(inputs.size(), [&](size_t i) {
      auto part = all;
      detail::set_tensors(part, inputs[i]);
      auto& replica = static_cast<Module&>(*replicas[i]);
      outputs[i].emplace(std::apply([&](auto&... items) { return replica.forward(items...); }, part));
    });
    std::vector<detail::Tensors> parts;
    for (auto& output : outputs) {
      parts.push_back(detail::tensors_of(*output));
    }
    detail::set_tensors(*outputs[0], this->gather(parts));
    return *std::move(outputs[0]);
  }

  template <TensorStructure... Args>
  auto operator()(const Args&... args) {
    return forward(args...);
  }

 private:
  /// By `clone`, which torch::nn::Cloneable gives.
  static std::shared_ptr<torch::nn::Module> clone(const Module& module, c10::Device device) {
    try {
      return std::dynamic_pointer_cast<Module>(module.clone(device));
    } catch (const std::exception& error) {
      detail::throw_not_cloneable(module, error);
    }
  }

  std::shared_ptr<Module> module_;
};

template <class Holder, class... Rest>
  requires requires { typename Holder::ContainedType; }
DataParallel(const Holder&, const Rest&...) -> DataParallel<typename Holder::ContainedType>;

}  // namespace mezzo
