#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace mezzo::detail {

/// The interface of optimizers that unscale gradients and skip steps on the device, so that a
/// training step never waits for it. PyTorch calls such optimizers `_step_supports_amp_scaling`.
/// GradScaler and schedulers find the interface by dynamic_cast. The class must also derive from
/// torch::optim::Optimizer.
class AmpScalingOptimizer {
 public:
  virtual ~AmpScalingOptimizer() = default;

  /// false: the optimizer only has names. GradScaler then decides on its steps.
  virtual bool steps_on_device() const { return true; }

  /// The optimizer's name in messages. Empty (the default): its C++ class.
  virtual std::string class_name() const { return {}; }

  /// Updates the parameters from gradients that are still scaled, or does nothing if they
  /// overflowed. Must not wait for the device.
  /// @param grad_scale  The divisor of all gradients (float32, 0-dim). The division is in float32,
  ///     because a half gradient may overflow otherwise. nullopt: `unscale_` has already divided.
  /// @param found_inf  1 to skip, 0 to step (float32, 0-dim, same device). A skipped step leaves
  ///     parameters, state and step counts unchanged.
  virtual at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) = 0;

  /// Whether a gradient, divided by `scale`, is inf or NaN: 1 or 0, float32, 0-dim, on the device
  /// of `scale`; undefined without gradients. For an optimizer that reads all gradients
  /// anyway, to measure their norm.
  ///
  /// GradScaler calls it right before `step_scaled`. Must not wait for the device, nor change
  /// gradients or state.
  /// @param scale  float32, 0-dim. nullopt: `unscale_` has already divided; GradScaler passes it
  ///     only with `found_inf_all_reduce`.
  /// @return nullopt (the default): GradScaler checks the gradients. After `unscale_`: nothing to
  ///     add.
  virtual std::optional<at::Tensor> check_gradients(const std::optional<at::Tensor>& /*scale*/) { return std::nullopt; }

  /// Whether the last step was skipped: 1 or 0, float32, 0-dim, on any device. Undefined (the
  /// default): the optimizer follows the `found_inf` that it is given.
  virtual at::Tensor found_inf() const { return {}; }

  /// The half-precision copy of a parameter. Backward may leave the gradient on the copy.
  /// `unscale_` stores the unscaled gradient on the parameter, because 1e-8 is 0 in float16.
  /// Undefined (the default): no copy.
  virtual at::Tensor half_copy_of(const at::Tensor& /*parameter*/) const { return {}; }

  /// The name of a parameter in messages. Empty (the default): the parameter is named by its
  /// number.
  virtual std::string name_of(const at::Tensor& /*parameter*/) const { return {}; }

  /// The 0-dim tensor that steps read the learning rate from; LRScheduler and ReduceLROnPlateau
  /// then write to it. Undefined (the default): the groups' options hold learning rates.
  virtual at::Tensor lr_tensor() const { return {}; }

  /// Whether `unscale_` may divide float16 gradients in place. Small ones become 0.
  virtual bool allows_half_gradients() const { return false; }
};

/// The tensor that holds the gradient of a parameter.
struct GradientOwner {
  at::Tensor tensor;  ///< the parameter, or its half copy
  at::Tensor master;  ///< the parameter, if `tensor` is its half copy; else undefined
};

/// The gradient owners of all parameters, group after group.
/// @throws c10::ValueError  if a parameter and its half copy both have a gradient
std::vector<GradientOwner> gradient_owners(torch::optim::Optimizer& optimizer);

/// The parameters of all groups. LibTorch's `size()` warns that it will be removed.
std::vector<at::Tensor> all_parameters(const torch::optim::Optimizer& optimizer);
size_t num_parameters(const torch::optim::Optimizer& optimizer);

/// For messages: the optimizer's class, such as "torch::optim::SGD".
std::string name_of(const torch::optim::Optimizer& optimizer);

/// For messages: the name of the `index`-th parameter, or "parameter 1 of group 0".
std::string parameter_name(const torch::optim::Optimizer& optimizer, size_t index);

/// For messages: "parameter weight", or "parameter 1 of group 0".
std::string labelled_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

}  // namespace mezzo::detail
