#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mezzo {

/// A leaf tensor to train, and the name it goes by in messages and state.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  /// A float16 or bfloat16 copy of a float32 `tensor`, as MasterWeights keeps one in the model: every update rewrites
  /// it in the same pass, and a gradient that backward left on it is the parameter's. Undefined: there is none.
  at::Tensor shadow = {};
};

}  // namespace mezzo
