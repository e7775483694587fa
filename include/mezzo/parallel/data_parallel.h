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
#include <utility>
#include <vector>

#include "mezzo/amp/visit_tensors.h"

namespace mezzo {

class Replicas;
class WorkerThreads;

struct DataParallelOptions {
  /// One replica on each; the module lies on the first. Empty: all CUDA devices. One may be named
  /// several times. A device without an index is the current one of its type.
  TORCH_ARG(std::vector<c10::Device>, devices);
  /// Where the output comes together; nullopt: the first device.
  TORCH_ARG(std::optional<c10::Device>, output_device);
  /// The dimension along which batches are divided.
  TORCH_ARG(int64_t, dim) = 0;
};

namespace detail {

/// A batch in equal parts, as `Tensor::chunk` makes them: one for each device at most.
class BatchDivision {
 public:
  /// @throws c10::ValueError  where there is no defined tensor, or they cannot be divided alike.
  BatchDivision(const std::vector<at::Tensor>& tensors, std::vector<c10::Device> devices, int64_t dim);
  size_t parts() const { return parts_; }
  at::Tensor part(const at::Tensor& tensor, size_t index) const;

 private:
  std::vector<c10::Device> devices_;
  int64_t dim_, rows_per_part_ = 0;
  size_t parts_ = 0;
};

void check_same_structure(const std::vector<std::vector<at::Tensor>>& parts);
/// Tensor `index` of all parts, put together; those without dimensions become a vector.
at::Tensor gather(const std::vector<std::vector<at::Tensor>>& parts, size_t index, c10::Device device, int64_t dim);

/// The part of DataParallel that does not depend on the module's type.
class DataParallelBase {
 public:
  /// Makes the replicas anew. They follow the module's weights, buffers and training modes by
  /// themselves; this is for changes of its other members.
  void replicate();

 protected:
  using Replicate = std::function<std::shared_ptr<torch::nn::Module>(c10::Device)>;

  DataParallelBase(const std::shared_ptr<torch::nn::Module>& module, DataParallelOptions options, Replicate replicate);
  ~DataParallelBase();
  DataParallelBase(const DataParallelBase&) = delete;
  DataParallelBase& operator=(const DataParallelBase&) = delete;

  BatchDivision divide(const std::vector<at::Tensor>& tensors) const;
  /// The module and its copies, for that many parts.
  std::vector<std::shared_ptr<torch::nn::Module>> take_replicas(size_t count);
  /// Calls `work` with each number below `count`, on threads that have this one's state.
  void run(size_t count, const std::function<void(size_t)>& work);

  /// Puts the tensors of the others to those of the first.
  template <class Output>
  Output put_together(std::vector<std::optional<Output>>& outputs) const {
    std::vector<std::vector<at::Tensor>> tensors(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      for_each_tensor(*outputs[i], [&](at::Tensor& tensor) { tensors[i].push_back(tensor); });
    }
    check_same_structure(tensors);
    size_t index = 0;
    for_each_tensor(*outputs[0], [&](at::Tensor& tensor) {
      tensor = gather(tensors, index++, *options_.output_device(), options_.dim());
    });
    return std::move(*outputs[0]);
  }

 private:
  DataParallelOptions options_;
  std::unique_ptr<Replicas> replicas_;
  std::unique_ptr<WorkerThreads> threads_;
};

[[noreturn]] void throw_not_cloneable(const torch::nn::Module& module, const std::exception& error);

/// By `clone`, which torch::nn::Cloneable gives.
template <class Module>
std::shared_ptr<Module> clone(const Module& module, c10::Device device) {
  std::shared_ptr<Module> copy;
  try {
    copy = std::dynamic_pointer_cast<Module>(module.clone(device));
  } catch (const std::exception& error) {
    throw_not_cloneable(module, error);
  }
  return copy;
}

}  // namespace detail

/// Runs a module on several devices of one process: each gets a replica on a thread of its own, and
/// its part of the batch; the outputs are put together again, and backward leaves the gradients of
/// all replicas on the module's own parameters. For several processes, which is faster, see
/// `mezzo::distributed::DistributedDataParallel`.
///
/// Autocast, its op policy and log, grad mode, the current streams of all devices (so that parts of
/// the batch are copied after what made it) and ModuleScope hold in the replicas as on the calling
/// thread. Replica 0 is the module itself: its buffers (running statistics) are updated from the
/// first part of the batch, those of the others are dropped, as in PyTorch. Not thread-safe. CPU
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
///     error; replicas are kept from call to call.
template <class Module>
class DataParallel : public detail::DataParallelBase {
 public:
  /// @param replicate  makes a module like this one, for modules without `clone`. Its
  ///   weights are set afterwards.
  /// @throws c10::ValueError  for no device, or a module that is not on the first; at the first
  ///     call, for one that cannot be cloned.
  explicit DataParallel(std::shared_ptr<Module> module,
                        const DataParallelOptions& options = {},
                        std::function<std::shared_ptr<Module>(c10::Device)> replicate = nullptr)
      : DataParallelBase(
            module,
            options,
            replicate ? Replicate(std::move(replicate))
                      : [original = module.get()](c10::Device device) -> std::shared_ptr<torch::nn::Module> {
              return detail::clone(*original, device);
            }),
        module_(std::move(module)) {}

  /// For module holders.
  template <class Holder>
    requires std::is_same_v<typename Holder::ContainedType, Module>
  explicit DataParallel(const Holder& module,
                        const DataParallelOptions& options = {},
                        std::function<std::shared_ptr<Module>(c10::Device)> replicate = nullptr)
      : DataParallel(module.ptr(), options, std::move(replicate)) {}

  Module& module() const { return *module_; }

  /// Calls the replicas' `forward`. Tensors among the arguments, in containers too, are
  /// divided; all else is copied.
  /// @throws c10::ValueError  where no argument is a tensor, or their sizes differ; what a replica
  ///     throws, with its number and device added.
  template <TensorStructure... Args>
  auto forward(const Args&... args) {
    using Output = std::remove_cvref_t<decltype(std::declval<Module&>().forward(std::declval<Args&>()...))>;
    static_assert(TensorStructure<Output>,
                  "DataParallel cannot put this output together: see TensorStructure for how to teach it");
    std::tuple<Args...> all(args...);
    std::vector<at::Tensor> tensors;
    for_each_tensor(all, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
    const auto division = this->divide(tensors);
    const auto replicas = this->take_replicas(division.parts());
    std::vector<std::optional<Output>> outputs(division.parts());
    this->run(division.parts(), [&](size_t i) {
      auto part = all;
      for_each_tensor(part, [&](at::Tensor& tensor) { tensor = division.part(tensor, i); });
      auto& replica = static_cast<Module&>(*replicas[i]);
      outputs[i].emplace(std::apply([&](auto&... items) { return replica.forward(items...); }, part));
    });
    return this->put_together(outputs);
  }

  template <TensorStructure... Args>
  auto operator()(const Args&... args) {
    return forward(args...);
  }

 private:
  std::shared_ptr<Module> module_;
};

template <class Holder, class... Rest>
  requires requires { typename Holder::ContainedType; }
DataParallel(const Holder&, const Rest&...) -> DataParallel<typename Holder::ContainedType>;

}  // namespace mezzo
