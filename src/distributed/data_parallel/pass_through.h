#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace mezzo::distributed {

/// Hands a forward's outputs on. Tensors that the loss does not use get no gradient instead of
/// zeros, so that the parameters behind them count as unused. Backward calls `visit` here before it
/// reaches the module.
std::vector<at::Tensor> pass_through(const std::vector<at::Tensor>& outputs, const std::function<void()>& visit);

}  // namespace mezzo::distributed
