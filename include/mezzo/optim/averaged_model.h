#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace mezzo {

/// Updates averages, in place, from the values of a model. All tensors have one device and dtype.
/// @param num_averaged  models averaged before, at least 1
using MultiAvgFn = std::function<void(at::TensorList averaged, at::TensorList current, int64_t num_averaged)>;

/// averaged = decay · averaged + (1 − decay) · current.
/// @param decay  in [0, 1]
/// @throws c10::ValueError  for another decay
/// @see torch.optim.swa_utils.get_ema_multi_avg_fn (Python)
MultiAvgFn get_ema_multi_avg_fn(double decay = 0.999);

/// The mean of all models so far.
/// @see torch.optim.swa_utils.get_swa_multi_avg_fn (Python)
MultiAvgFn get_swa_multi_avg_fn();

/// The implementation of AveragedModel, for modules of any type.
class ModelAverage {
 public:
  /// @param module  holds the averages; its values are overwritten by the first update
  /// @param multi_avg_fn  how a new model enters the average
  /// @param use_buffers  whether buffers, such as BatchNorm's, are averaged instead of copied
  ModelAverage(std::shared_ptr<torch::nn::Module> module, MultiAvgFn multi_avg_fn, bool use_buffers);

  /// Adds the parameters of `model` to the average; the first call copies them. Buffers are copied,
  /// or also averaged (`use_buffers`). Never waits for the device.
  /// @throws c10::ValueError  for other parameters or buffers; nothing has changed then
  void update_parameters(const torch::nn::Module& model);

  /// The number of models averaged so far.
  int64_t n_averaged() const { return n_averaged_; }

 private:
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive&, const ModelAverage&);
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive&, ModelAverage&);

  std::shared_ptr<torch::nn::Module> module_;
  MultiAvgFn multi_avg_fn_;
  bool use_buffers_;
  int64_t n_averaged_ = 0;
};

/// For `torch::save`: writes parameters, buffers and `n_averaged`, not the function.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const ModelAverage& average);
/// For `torch::load`.
/// @throws c10::Error  for an archive of another model
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, ModelAverage& average);

/// Averages of a model's weights: a moving average (EMA), or the mean of several models (SWA,
/// Izmailov et al. 2018). Keeps them in a copy of the model, to evaluate or to save.
///
/// @code
/// Net model;
/// mezzo::AveragedModel ema(model, mezzo::get_ema_multi_avg_fn(0.999));
/// // in the loop; a skipped step does not count:
/// if (scaler.step(optimizer).stepped()) ema.update_parameters(*model);
/// // in the end:
/// ema.module()->eval();
/// auto logits = ema.module()->forward(input);
/// @endcode
///
/// Not thread-safe. Never waits for the device.
/// @tparam Model  a `ModuleHolder` (TORCH_MODULE), or a `std::shared_ptr` to a module
/// @see torch.optim.swa_utils.AveragedModel (Python). Same numbers.
template <class Model>
class AveragedModel : public ModelAverage {
 public:
  /// @param model  The model to clone. Its class derives from `torch::nn::Cloneable`, as LibTorch's
  ///     do.
  /// @param multi_avg_fn  default: SWA
  /// @param use_buffers  whether buffers, such as BatchNorm's, are averaged instead of copied
  /// @throws c10::Error  for a module that LibTorch cannot clone: see `into`
  explicit AveragedModel(const Model& model, MultiAvgFn multi_avg_fn = get_swa_multi_avg_fn(), bool use_buffers = false)
      : AveragedModel(std::move(multi_avg_fn), use_buffers, Model(std::dynamic_pointer_cast<Module>(model->clone()))) {}

  /// For a module that LibTorch cannot clone.
  /// @param averages  another instance of the model's class: the first update overwrites its values
  static AveragedModel into(Model averages,
                            MultiAvgFn multi_avg_fn = get_swa_multi_avg_fn(),
                            bool use_buffers = false) {
    return AveragedModel(std::move(multi_avg_fn), use_buffers, std::move(averages));
  }

  /// The model with the averages.
  Model& module() { return module_; }
  /// The model with the averages.
  const Model& module() const { return module_; }

 private:
  using Module = std::remove_reference_t<decltype(*std::declval<Model&>())>;

  AveragedModel(MultiAvgFn multi_avg_fn, bool use_buffers, std::type_identity_t<Model> averages)
      : ModelAverage(as_pointer(averages), std::move(multi_avg_fn), use_buffers), module_(std::move(averages)) {}

  static std::shared_ptr<torch::nn::Module> as_pointer(const Model& model) {
    if constexpr (requires { model.ptr(); }) {
      return model.ptr();
    } else {
      return model;
    }
  }

  Model module_;
};

namespace detail {

/// Makes the model's BatchNorms collect new statistics, as plain means, during its lifetime.
class BatchNormGuard {
 public:
  explicit BatchNormGuard(torch::nn::Module& model);
  ~BatchNormGuard();
  BatchNormGuard(const BatchNormGuard&) = delete;
  BatchNormGuard& operator=(const BatchNormGuard&) = delete;
  /// Whether the model has a BatchNorm.
  bool is_needed() const { return !restore_.empty(); }

 private:
  std::vector<std::function<void()>> restore_;
};

/// The input of a batch: the batch, its `data`, or the first of a tuple, pair or vector.
template <class Batch>
at::Tensor input_of(const Batch& batch) {
  if constexpr (std::is_convertible_v<const Batch&, at::Tensor>) {
    return batch;
  } else if constexpr (requires { batch.data.sizes(); }) {
    return batch.data;
  } else if constexpr (requires { std::get<0>(batch); }) {
    return std::get<0>(batch);
  } else {
    return batch.at(0);
  }
}

}  // namespace detail

/// Computes the running means and variances of all BatchNorms of `model` again, from one pass over
/// `loader` in training mode. Averaged weights need it, because their activations have other
/// statistics. Restores modes and momenta. Does nothing for a model without BatchNorm.
/// @param loader  a LibTorch data loader, or any range of batches: of tensors, of Examples, or of
///     tuples, pairs or vectors that begin with the input
/// @param model  a pointer or holder with `forward(input)`, such as `averaged.module()`
/// @param device  copies inputs to this device first; nullopt: no copy
/// @see torch.optim.swa_utils.update_bn (Python)
template <class Loader, class Model>
void update_bn(Loader& loader, Model& model, std::optional<c10::Device> device = std::nullopt) {
  const c10::NoGradGuard no_grad;
  const detail::BatchNormGuard batch_norms(*model);
  if (!batch_norms.is_needed()) return;
  for (const auto& batch : loader) {
    at::Tensor input = detail::input_of(batch);
    if (device) {
      input = input.to(*device);
    }
    static_cast<void>(model->forward(input));
  }
}

}  // namespace mezzo
