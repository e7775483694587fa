#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace mezzo::detail {

/// What GradScaler and schedulers ask of an optimizer that unscales its gradients and skips steps on the device,
/// so that a training step never waits for it. PyTorch calls such optimizers
/// `_step_supports_amp_scaling`. They find this interface by dynamic_cast. The class must
/// derive from torch::optim::Optimizer too.
class AmpScalingOptimizer {
 public:
  virtual ~AmpScalingOptimizer() = default;

  /// false: the optimizer does none of this, and only has names. GradScaler then decides on its steps.
  virtual bool steps_on_device() const { return true; }

  /// The optimizer in messages. Empty (the default): its C++ class.
  virtual std::string class_name() const { return {}; }

  /// Updates the parameters from gradients that are still scaled, or does nothing if they
  /// overflowed. Must not wait for the device.
  /// @param grad_scale  the divisor of all gradients (float32, 0-dim). The division is in float32,
  ///     as a half gradient may be finite only there. nullopt: `unscale_` has already divided.
  /// @param found_inf  1 to skip, 0 to step (float32, 0-dim, same device). A skipped step leaves
  ///     parameters, state and step counts unchanged.
  virtual at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) = 0;

  /// Whether a gradient, divided by `scale`, is inf or NaN: 1 or 0, float32, 0-dim, on the device of
  /// `scale`; undefined if there is no gradient. For an optimizer that reads all gradients anyway,
  /// to measure their norm. GradScaler calls it right before `step_scaled`. Must not wait for the
  /// device, nor change gradients or state.
  /// @param scale  float32, 0-dim. nullopt: `unscale_` has already divided; GradScaler asks so only
  ///     with `found_inf_all_reduce`.
  /// @return nullopt (the default): GradScaler checks by itself. After `unscale_`: nothing to add.
  virtual std::optional<at::Tensor> check_gradients(const std::optional<at::Tensor>& /*scale*/) { return std::nullopt; }

  /// Whether the last step was skipped: 1 or 0, float32, 0-dim, on any device. Undefined (the
  /// default): the optimizer follows the `found_inf` that it is given.
  virtual at::Tensor found_inf() const { return {}; }

  /// The half-precision copy of a parameter, which backward may leave the gradient on. `unscale_`
  /// gives the unscaled gradient to the parameter, since 1e-8 is 0 in float16. Undefined (the
  /// default): there is none.
  virtual at::Tensor half_copy_of(const at::Tensor& /*parameter*/) const { return {}; }

  /// Empty (the default): the parameter is named by its number.
  virtual std::string name_of(const at::Tensor& /*parameter*/) const { return {}; }

  /// The 0-dim tensor that steps read the learning rate from: LRScheduler and ReduceLROnPlateau then
  /// write to it. Undefined (the default): the groups' options hold learning rates.
  virtual at::Tensor lr_tensor() const { return {}; }

  /// Whether `unscale_` may divide float16 gradients in place. Small ones become 0.
  virtual bool allows_half_gradients() const { return false; }
};

/// The tensor that has the gradient of a parameter.
struct GradientOwner {
  at::Tensor tensor;  ///< the parameter, or its half copy
  at::Tensor master;  ///< the parameter, if `tensor` is its half copy; else undefined
};

/// Those of all parameters, group after group.
/// @throws c10::ValueError  if a parameter has a gradient of its own and one on its half copy
std::vector<GradientOwner> gradient_owners(torch::optim::Optimizer& optimizer);

/// Of all groups. LibTorch's `size()` warns that it will be removed.
std::vector<at::Tensor> all_parameters(const torch::optim::Optimizer& optimizer);
size_t num_parameters(const torch::optim::Optimizer& optimizer);

/// For messages: the optimizer's class, such as "torch::optim::SGD".
std::string name_of(const torch::optim::Optimizer& optimizer);

/// For messages: the name of the `index`-th parameter, or "parameter 1 of group 0".
std::string parameter_name(const torch::optim::Optimizer& optimizer, size_t index);

/// For messages: "parameter weight", or "parameter 1 of group 0".
std::string labelled_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

}  // namespace mezzo::detail
