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

/// Options of DataParallel.
struct DataParallelOptions {
  /// The devices, each with one replica; the module is on the first. Empty: all CUDA devices. A
  /// device may be listed several times. A device without an index is the current one of its type.
  TORCH_ARG(std::vector<c10::Device>, devices);
  /// The device of the output. nullopt: the first device.
  TORCH_ARG(std::optional<c10::Device>, output_device);
  /// The dimension along which batches are divided.
  TORCH_ARG(int64_t, dim) = 0;
};

namespace detail {

using Tensors = std::vector<at::Tensor>;

/// The part of DataParallel that is independent of the module's type, with the steps of
/// torch.nn.parallel.
class DataParallelBase {
 protected:
  using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;
  using MakeReplica = std::function<std::shared_ptr<torch::nn::Module>(c10::Device)>;

  DataParallelBase(std::shared_ptr<torch::nn::Module> module, DataParallelOptions options, MakeReplica make_replica);

  /// The tensors in equal parts, by part, as `Tensor::chunk` makes them. At most one part per
  /// device.
  std::vector<Tensors> scatter(const Tensors& tensors) const;
  /// The module and copies of its current state. Parameters of the copies are functions of the
  /// module's parameters. A copy is reused when no graph needs it.
  Modules replicate(size_t count);
  /// Calls `work` with each number below `count`, on threads with the state of this thread.
  void parallel_apply(size_t count, const std::function<void(size_t)>& work) const;
  /// Joins the parts of each tensor. Tensors without dimensions become a vector.
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

/// Runs a module on several devices of one process. Each device gets a replica, a thread and a part
/// of the batch. The outputs are joined, and backward adds the gradients of all replicas to the
/// module's parameters. `mezzo::distributed::DistributedDataParallel`, with several processes, is
/// faster.
///
/// Replicas run with the calling thread's autocast state, op policy and log, grad mode, current
/// streams of all devices and ModuleScope. Not thread-safe. Tested on CPUs and on simulated
/// accelerators; never run on several GPUs.
///
/// Replica 0 is the module itself: its buffers (running statistics) are updated from the first part
/// of the batch. As in PyTorch, buffer updates of the other replicas are lost. CPU replicas draw
/// from one generator, in no fixed order: dropout on them is not reproducible.
///
/// @code
/// mezzo::DataParallel model(net, mezzo::DataParallelOptions().devices({{torch::kCUDA, 0}, {torch::kCUDA, 1}}));
/// const auto loss = loss_fn(model(input), target);
/// @endcode
///
/// @tparam Module  the module's class (for a holder such as `Net`, `NetImpl`). Its `forward` is
///     called concurrently on several objects.
/// @see torch.nn.DataParallel. Differs: also runs on CPU devices; batches of different sizes are an
///     error. Replicas are kept between calls; except parameters, buffers and training mode, their
///     members stay as they were made.
template <class Module>
class DataParallel : public detail::DataParallelBase {
 public:
  /// @param make_replica  Makes a module like this one on a device, for modules without `clone`.
  ///     Its weights are set afterwards.
  /// @throws c10::ValueError  for no device, or a module that is not on the first; at the first
  ///     call, for a module that cannot be cloned
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

  /// The wrapped module.
  Module& module() const { return *module_; }

  /// Calls the replicas' `forward`. Tensors among the arguments, also in containers, are divided.
  /// Other arguments are copied.
  /// @throws c10::ValueError  if no argument is a tensor, or their sizes differ
  /// @throws  the exception of a replica, with its number and device added
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

  /// The same as `forward`.
  template <TensorStructure... Args>
  auto operator()(const Args&... args) {
    return forward(args...);
  }

 private:
  /// Makes a replica by `clone`, which torch::nn::Cloneable provides.
  static std::shared_ptr<torch::nn::Module> clone(const Module& module, c10::Device device) {
    try {
      return std::dynamic_pointer_cast<Module>(module.clone(device));
    } catch (const std::exception& error) {
      detail::throw_not_cloneable(module, error);
    }
  }

  std::shared_ptr<Module> module_;
};

/// Deduces the module's class from a module holder.
template <class Holder, class... Rest>
  requires requires { typename Holder::ContainedType; }
DataParallel(const Holder&, const Rest&...) -> DataParallel<typename Holder::ContainedType>;

}  // namespace mezzo
