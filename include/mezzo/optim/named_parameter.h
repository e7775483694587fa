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
  kUnknown,             ///< nobody has looked at the module: the parameter's name tells
  kNone,                ///< it is another layer
  kNorm,                ///< it normalizes
  kNormWithStatistics,  ///< it normalizes, and has buffers of running statistics, as BatchNorm has
};

/// A leaf tensor to train, and its name in messages and state.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  /// A float16 or bfloat16 copy of a float32 `tensor`, as MasterWeights keeps one in the model:
  /// every update rewrites it in the same pass, and a gradient that backward left on it is the
  /// parameter's. Undefined: there is none.
  at::Tensor half_copy = {};
  /// Set by `named_parameters`.
  NormRole norm = NormRole::kUnknown;
};

/// Those of a module, by their names in it; a tied one once. The type of the module that holds a
/// parameter sets its `norm`:
/// - LibTorch's BatchNorm, InstanceNorm, LayerNorm and GroupNorm are norms, and so is a class of
///   yours whose name ends in `Norm`, `NormImpl` or `Norm2d` (`RMSNorm`) and that has no matrix of
///   its own (not `SpectralNorm`);
/// - LibTorch's other modules are not;
/// - any other class leaves kUnknown.
std::vector<NamedParameter> named_parameters(const torch::nn::Module& module);

/// Whether a parameter is the weight or bias of a normalization layer. Its `norm` decides. If that
/// is kUnknown, its name does: it has one dimension, and the module it belongs to, the last but one
/// part of its name, is called a norm or `ln`, `bn` or `gn` with a number at most
/// (`attention.output.LayerNorm.weight`, `blocks.3.norm1.bias`, `ln_f.weight`).
bool is_norm_parameter(const NamedParameter& parameter);

}  // namespace mezzo
