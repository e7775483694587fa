#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mezzo {

/// A leaf tensor to train, and the name it goes by in messages and state.
struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

}  // namespace mezzo
