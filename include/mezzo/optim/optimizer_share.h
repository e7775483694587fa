#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <set>
#include <string>

namespace mezzo {

/// What one optimizer updates of a model whose parameters are divided among several, each in a process of its own
/// (ZeRO stage 1), and how they talk. Each process must make the same calls on its optimizer in the same order.
struct OptimizerShare {
  /// By name; may be none. Of the other parameters, `zero_grad` and `visit_parameters` alone take notice.
  std::set<std::string> parameters;
  /// Replaces a float64 vector by its sum over all processes, the same bits on each. Called at most once by
  /// `check_gradients` and once by each step.
  std::function<void(at::Tensor& values)> add_up;
  /// Called at the end of every step, to hand its new weights to the other processes and take theirs.
  /// @param found_inf  1 where the step changed nothing, the same on all processes: float32, 0-dim, on the device of
  ///     the gradients; undefined where nothing was checked.
  std::function<void(const at::Tensor& found_inf)> hand_out;
};

}  // namespace mezzo
