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

struct MasterWeightsOptions {
  /// Norms stay float32 in the model, and train as they are. A norm with running statistics, such
  /// as BatchNorm, always does: half-precision statistics would stop moving.
  TORCH_ARG(bool, keep_norms_fp32) = false;
  /// Tells norms from other parameters.
  TORCH_ARG(std::function<bool(const NamedParameter&)>, is_norm) = is_norm_parameter;

 public:
  /// Whether a parameter stays float32 in the model.
  bool stays_fp32(const NamedParameter& parameter) const {
    return parameter.norm == NormRole::kNormWithStatistics || (keep_norms_fp32_ && is_norm_(parameter));
  }
};

/// Float32 master copies of a model kept in half precision (Micikevicius et al. 2017, "Mixed
/// precision training", section 3.1). Construct before the first backward and give `masters()` to
/// the optimizer. One of mezzo's takes the model's half gradients and rounds its updates back into
/// the model by itself:
/// @code
/// mezzo::MasterWeights masters(*model, torch::kHalf);
/// mezzo::AdamW optimizer(masters.masters(), mezzo::AdamWOptions().lr(3e-5));
/// scaler.scale(loss(batch)).backward();   // half weights, half gradients
/// scaler.step(optimizer);                 // float32 update, then float16 weights
/// scaler.update();
/// optimizer.zero_grad();
/// @endcode
/// With any other optimizer, call `accumulate_gradients()` before the step and `copy_to_model()`
/// after. To sum gradients of several backwards in float32, call `accumulate_gradients()` after
/// each. After `scaler.unscale_(optimizer)`, clip `masters.parameters()`: unscaled gradients are
/// float32, and the masters'; the model's are gone.
///
/// Not thread-safe. Syncs once to check values, in the constructor and in `load_state_dict`.
class MasterWeights {
 public:
  /// Casts the parameters of `model` in place to `dtype`, except those for which
  /// `options.stays_fp32` is true; the masters keep the float32 values, names and devices. Buffers
  /// keep their dtype. Give parameters by `named_parameters(module)`: tensors that a program names
  /// itself do not tell that they are BatchNorm's, which has to stay float32. A tied parameter, one tensor under
  /// several names, has one master, under its first name. A frozen one, which requires no gradient, is half in the
  /// model, too, and keeps its float32 values for `state_dict` and `to_float32`.
  /// @throws c10::ValueError  if `dtype` is not kHalf or kBFloat16, or a parameter is not float32,
  ///     has a gradient already, or a finite value that overflows `dtype`; nothing has changed then
  MasterWeights(std::vector<NamedParameter> model, c10::ScalarType dtype, MasterWeightsOptions options = {});
  /// Of all parameters of a module: `MasterWeights masters(*model, torch::kHalf)`. The types of its
  /// modules tell which are norms (`named_parameters`).
  MasterWeights(const torch::nn::Module& model, c10::ScalarType dtype, MasterWeightsOptions options = {})
      : MasterWeights(named_parameters(model), dtype, std::move(options)) {}

  /// What to train: float32 tensors, whose `half_copy` is the model's parameter. A norm that stays
  /// float32 is the model's own tensor, without a half copy. Parameters that were frozen at construction
  /// are not here.
  const std::vector<NamedParameter>& masters() const { return masters_; }

  /// Their tensors alone, to clip or inspect gradients.
  std::vector<at::Tensor> parameters() const;

  /// Adds the model's gradients to the masters' in float32 and drops the model's.
  void accumulate_gradients();

  /// Rounds the masters into the model.
  void copy_to_model();

  /// Makes the model float32 again, with the values of the masters, whose memory it shares from
  /// then on; gradients are dropped. Ends the mode: for more training, make a new optimizer.
  void to_float32();

  /// The float32 weights by name, sharing memory: the model in full precision. Tied ones under each
  /// of their names.
  std::map<std::string, at::Tensor> state_dict() const;

  /// Takes over what `state_dict` gave, or the weights of a float32 model, and rounds them into the
  /// model. Of a tied one, the first name will do.
  /// @throws c10::ValueError  for an entry too many or missing, of another shape, of a dtype other
  ///     than float32 (half weights have lost what masters keep), with a value that overflows, or
  ///     unlike that of another name it is tied to; nothing has changed then
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

 private:
  c10::ScalarType dtype_;
  std::vector<NamedParameter> weights_;               // all of the model, each once
  std::vector<NamedParameter> masters_;               // those of `weights_` that are trained
  std::map<std::string, std::string> first_name_of_;  // of the other names of tied parameters
};

/// For `torch::save` and `torch::load`: the entries of `state_dict`, with the same errors.
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const MasterWeights& masters);
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, MasterWeights& masters);

}  // namespace mezzo
