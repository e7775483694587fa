#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/arg.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/amp/visit_tensors.h"

namespace mezzo {

struct CheckpointOptions {
  /// Saves the states of the random-number generators of the CPU and of the inputs' devices, so that
  /// backward draws the same numbers again. false: faster, for functions without dropout. A CUDA
  /// graph cannot save them: pass false inside a GraphedStep.
  TORCH_ARG(bool, preserve_rng_state) = true;
};

namespace detail {

/// While it lives, tensors that autograd would save on this thread are dropped.
class CheckpointScope {
 public:
  /// @param recompute  runs the function once more, on these tensors
  [[nodiscard]] CheckpointScope(const std::vector<at::Tensor>& inputs,
                                std::function<void(const std::vector<at::Tensor>&)> recompute,
                                const CheckpointOptions& options);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

template <class Inputs>
void visit_inputs(Inputs& inputs, const TensorVisitor& visit) {
  const auto visit_one = [&]<class Input>(Input& input) {
    if constexpr (TensorStructure<Input>) {
      for_each_tensor(input, visit);
    }
  };
  std::apply([&](auto&... each) { (visit_one(each), ...); }, inputs);
}

}  // namespace detail

/// function(inputs…) with activation checkpointing: autograd saves the inputs alone, and backward
/// calls `function` again when it needs the activations. Less memory, one more forward pass.
///
/// @code
/// for (const auto& block : *blocks) {
///   x = mezzo::checkpoint([block](const torch::Tensor& input) { return block->forward(input); }, x);
/// }
/// @endcode
///
/// The autograd graph is that of a plain call, so gradients are bit-identical. They reach the inputs
/// and every tensor that `function` captures. Checkpoints nest. `torch::autograd::grad`, a second
/// backward (retain_graph) and second derivatives work, as do hooks of parameters. The second call
/// runs with the autocast state (dtype, op policy, ModuleScope) and, by default, the random numbers
/// of the first. A CastLog records the first call alone.
///
/// Tensors in `inputs` may lie in tuples, containers and types with `visit_tensors`; those in other
/// types, and captured ones, stay in memory. Does nothing but call `function` while gradients are
/// off. Thread-safe if `function` is, and if it draws no random numbers or `preserve_rng_state` is
/// false: with it, no other thread may draw from the same generators during either call. Never waits
/// for the device.
///
/// @param function  copied or moved. Called twice, it must compute the same and change no input. The
///     tensors that it captures must not change before backward: this is not detected.
/// @return what `function` returns, of any type
/// @throws c10::Error  in backward, if the second call saves another number of tensors, or tensors of
///     another shape, dtype or device; and if a tensor that a plain call would have saved was changed
///     in place
/// @note  Installs a wrapper around LibTorch's autograd engine in its first call, for the process:
///     LibTorch has saved-tensor hooks for all ops in Python only.
/// @see torch.utils.checkpoint.checkpoint with use_reentrant=False (Python); Chen et al. 2016,
///     "Training deep nets with sublinear memory cost". Differs: always recomputes all of `function`.
template <class Function, class... Inputs>
decltype(auto) checkpoint(const CheckpointOptions& options, Function&& function, Inputs&&... inputs) {
  const auto run = std::make_shared<std::decay_t<Function>>(std::forward<Function>(function));
  if (!c10::GradMode::is_enabled()) {
    return std::invoke(*run, std::forward<Inputs>(inputs)...);
  }
  std::tuple<std::decay_t<Inputs>...> kept(inputs...);
  std::vector<at::Tensor> tensors;
  detail::visit_inputs(kept, [&](at::Tensor& tensor) { tensors.push_back(std::exchange(tensor, {})); });
  const detail::CheckpointScope scope(
      tensors,
      [run, kept = std::move(kept)](const std::vector<at::Tensor>& saved) {
        auto again = kept;
        size_t next = 0;
        detail::visit_inputs(again, [&](at::Tensor& tensor) { tensor = saved[next++]; });
        static_cast<void>(std::apply(*run, again));
      },
      options);
  return std::invoke(*run, std::forward<Inputs>(inputs)...);
}

/// The same with default options.
template <class Function, class... Inputs>
  requires(!std::is_same_v<std::decay_t<Function>, CheckpointOptions>)
decltype(auto) checkpoint(Function&& function, Inputs&&... inputs) {
  return checkpoint(CheckpointOptions(), std::forward<Function>(function), std::forward<Inputs>(inputs)...);
}

}  // namespace mezzo
