#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace mezzo {

/// Whether the module that holds a parameter is a normalization layer.
enum class NormRole {
  kUnknown,             ///< the module is unknown: the parameter's name decides
  kNone,                ///< another layer
  kNorm,                ///< a norm
  kNormWithStatistics,  ///< a norm with buffers of running statistics, such as BatchNorm
};

/// A leaf tensor to train, and its name in messages and state.
struct NamedParameter {
  std::string name;   ///< in messages and state; may be empty
  at::Tensor tensor;  ///< a leaf
  /// A float16 or bfloat16 copy of a float32 `tensor`, as MasterWeights keeps it in the model.
  /// Every update rewrites it in the same pass, and backward may leave the gradient on it.
  /// Undefined: no copy.
  at::Tensor half_copy = {};
  /// Set by `named_parameters`.
  NormRole norm = NormRole::kUnknown;
};

/// The parameters of a module, by their names in it; a tied parameter appears once. The type of the
/// module that holds a parameter sets its `norm`:
/// * LibTorch's BatchNorm, InstanceNorm, LayerNorm and GroupNorm are norms.
/// * A custom class is a norm if its name ends in `Norm`, `NormImpl` or `Norm2d` (`RMSNorm`) and it
///   has no matrix. `SpectralNorm` has a matrix.
/// * LibTorch's other modules are kNone.
/// * Any other class is kUnknown.
std::vector<NamedParameter> named_parameters(const torch::nn::Module& module);

/// Whether a parameter is the weight or bias of a normalization layer. Its `norm` decides. If that
/// is kUnknown, the name decides: the parameter has one dimension, and its module is called a norm,
/// or `ln`, `bn` or `gn` with an optional number. The module is the last but one part of the name,
/// as in `attention.output.LayerNorm.weight`, `blocks.3.norm1.bias` and `ln_f.weight`.
bool is_norm_parameter(const NamedParameter& parameter);

}  // namespace mezzo
