#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace mezzo::simulated {

/// An operator's argument as its schema describes it.
inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// Calls `change(tensor, argument)` for every defined tensor among values that `arguments`
/// describe, also in lists. The result replaces the tensor.
using ChangeTensor = std::function<at::Tensor(const at::Tensor& tensor, const c10::Argument& argument)>;
void change_tensors(const std::vector<c10::Argument>& arguments, torch::jit::Stack& values, const ChangeTensor& change);

/// The results of `op` for `arguments`, and the resized arguments, as tensors without useful
/// values. They come from the operator's Meta kernel if there is one, else from its CPU kernel,
/// called with zeros.
struct Shapes {
  torch::jit::Stack arguments;
  torch::jit::Stack results;
};
Shapes infer_shapes(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

}  // namespace mezzo::simulated
