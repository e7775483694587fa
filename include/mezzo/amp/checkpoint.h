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

/// Options of `checkpoint`.
struct CheckpointOptions {
  /// Saves the states of the random-number generators of the CPU and of the inputs' devices, so
  /// that backward draws the same numbers again. false: faster, for functions without dropout. A
  /// CUDA graph cannot save the states: pass false inside a GraphedStep.
  TORCH_ARG(bool, preserve_rng_state) = true;
};

namespace detail {

/// Drops the tensors that autograd would save on this thread, during its lifetime.
class CheckpointScope {
 public:
  /// @param recompute  runs the function again, on these tensors
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

/// Calls `function(inputs…)` with activation checkpointing. Autograd saves only the inputs, and
/// backward calls `function` again when it needs the activations. Needs less memory, and one more
/// forward pass.
///
/// @code
/// for (const auto& block : *blocks) {
///   x = mezzo::checkpoint([block](const torch::Tensor& input) { return block->forward(input); }, x);
/// }
/// @endcode
///
/// The autograd graph equals the graph of a plain call, so gradients are bit-identical. They reach
/// the inputs and every tensor that `function` captures. Checkpoints nest. A second backward
/// (retain_graph), second derivatives, `torch::autograd::grad` and hooks of parameters work.
///
/// The second call runs with the autocast state of the first: dtype, op policy and ModuleScope. By
/// default it also draws the same random numbers. A CastLog records only the first call.
///
/// Tensors in `inputs` may lie in tuples, containers and types with `visit_tensors`. Tensors in
/// other types, and captured tensors, stay in memory. If gradients are off, it only calls
/// `function`. Never waits for the device.
///
/// Thread-safe if `function` is thread-safe, and draws no random numbers or `preserve_rng_state` is
/// false. Otherwise no other thread may draw from the same generators during either call.
///
/// @param function  Copied or moved. Called twice, so it must compute the same result and change no
///     input. Its captured tensors must not change before backward: this is not detected.
/// @return the result of `function`, of any type
/// @throws c10::Error  while a GraphedStep records, if `preserve_rng_state` is true
/// @throws c10::Error  in backward, if the second call saves another number of tensors, or tensors
///     of another shape, dtype or device
/// @throws c10::Error  in backward, if a tensor that a plain call would save was changed in place
/// @note  The first call installs a wrapper around LibTorch's autograd engine, for the process.
///     LibTorch has saved-tensor hooks for all ops only in Python.
/// @see torch.utils.checkpoint.checkpoint with use_reentrant=False (Python); Chen et al. 2016,
///     "Training deep nets with sublinear memory cost". Differs: always recomputes all of
///     `function`.
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
