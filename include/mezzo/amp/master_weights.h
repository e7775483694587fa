#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/arg.h>
#include <torch/serialize/archive.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/optim/named_parameter.h"

namespace mezzo {

/// Options of MasterWeights.
struct MasterWeightsOptions {
  /// Norms stay float32 in the model, and train in float32. A norm with running statistics, such as
  /// BatchNorm, always stays float32: half-precision statistics would stop changing.
  TORCH_ARG(bool, keep_norms_fp32) = false;
  /// Decides whether a parameter belongs to a norm.
  TORCH_ARG(std::function<bool(const NamedParameter&)>, is_norm) = is_norm_parameter;

 public:
  /// Whether a parameter stays float32 in the model.
  bool stays_fp32(const NamedParameter& parameter) const {
    return parameter.norm == NormRole::kNormWithStatistics || (keep_norms_fp32_ && is_norm_(parameter));
  }
};

/// Float32 master copies of a model kept in half precision (Micikevicius et al. 2017, "Mixed
/// precision training", section 3.1). Construct it before the first backward and give `masters()`
/// to the optimizer. An optimizer of mezzo reads the model's half gradients, and rounds its updates
/// into the model:
/// @code
/// mezzo::MasterWeights masters(*model, torch::kHalf);
/// mezzo::AdamW optimizer(masters.masters(), mezzo::AdamWOptions().lr(3e-5));
/// scaler.scale(loss(batch)).backward();   // half weights, half gradients
/// scaler.step(optimizer);                 // float32 update, then float16 weights
/// scaler.update();
/// optimizer.zero_grad();
/// @endcode
/// With any other optimizer, call `accumulate_gradients()` before the step and `copy_to_model()`
/// after it. To sum gradients of several backwards in float32, call `accumulate_gradients()` after
/// each. After `scaler.unscale_(optimizer)`, clip `masters.parameters()`: the unscaled gradients
/// are float32 and on the masters. The model's gradients are dropped.
///
/// Not thread-safe. Syncs once to check values, in the constructor and in `load_state_dict`.
class MasterWeights {
 public:
  /// Casts the parameters of `model` in place to `dtype`, except if `options.stays_fp32` is true
  /// for them. The masters keep the float32 values, names and devices. Buffers keep their dtype.
  /// Use `named_parameters(module)` for the parameters: only this way BatchNorm is recognized,
  /// which must stay float32.
  ///
  /// A tied parameter, one tensor under several names, has one master, under its first name. A
  /// frozen parameter, which requires no gradient, is also cast in the model. Its float32 values
  /// are kept for `state_dict` and `to_float32`.
  /// @throws c10::ValueError  if `dtype` is not kHalf or kBFloat16, or a parameter is not float32,
  ///     has a gradient already, or a finite value that overflows `dtype`; nothing has changed then
  /// @throws c10::ValueError  if two parameters have one name; nothing has changed then
  MasterWeights(std::vector<NamedParameter> model, c10::ScalarType dtype, MasterWeightsOptions options = {});
  /// Masters for all parameters of a module: `MasterWeights masters(*model, torch::kHalf)`. The
  /// types of its modules decide which parameters are norms (`named_parameters`).
  MasterWeights(const torch::nn::Module& model, c10::ScalarType dtype, MasterWeightsOptions options = {})
      : MasterWeights(named_parameters(model), dtype, std::move(options)) {}

  /// The tensors to train: float32, whose `half_copy` is the model's parameter. A norm that stays
  /// float32 is the model's tensor, without a half copy. Parameters that were frozen at
  /// construction are not included.
  const std::vector<NamedParameter>& masters() const { return masters_; }

  /// The tensors of `masters()`, to clip or inspect gradients.
  std::vector<at::Tensor> parameters() const;

  /// Adds the model's gradients to the masters' in float32 and drops the model's.
  void accumulate_gradients();

  /// Rounds the masters into the model.
  void copy_to_model();

  /// Makes the model float32 again, with the values of the masters. The model then shares the
  /// masters' memory, and gradients are dropped. For more training, make a new optimizer.
  void to_float32();

  /// The float32 weights by name, sharing memory: the model in full precision. A tied tensor
  /// appears under each of its names.
  std::map<std::string, at::Tensor> state_dict() const;

  /// Loads the result of `state_dict`, or the weights of a float32 model, and rounds them into the
  /// model. For a tied tensor, the first name suffices.
  /// @throws c10::ValueError  for an extra or missing entry, an entry of another shape, or a value
  ///     that overflows; nothing has changed then
  /// @throws c10::ValueError  for a dtype other than float32, because half weights have lost
  ///     precision
  /// @throws c10::ValueError  for two different values of one tied tensor
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

 private:
  c10::ScalarType dtype_;
  std::vector<NamedParameter> weights_;               // all of the model, each once
  std::vector<NamedParameter> masters_;               // those of `weights_` that are trained
  std::map<std::string, std::string> first_name_of_;  // of the other names of tied parameters
};

/// For `torch::save`: writes the entries of `state_dict`.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const MasterWeights& masters);
/// For `torch::load`: reads the entries of `state_dict`, with the errors of `load_state_dict`.
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, MasterWeights& masters);

}  // namespace mezzo
