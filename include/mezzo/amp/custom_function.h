#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/amp/detail/function_scopes.h"
#include "mezzo/amp/op_lists.h"

namespace mezzo {

/// Gives a custom function a line in op policies, like an op. Inside an autocast region its tensor
/// arguments are cast as the line says, and its inner ops run with autocast off. Under kUntouched
/// neither happens. Outside an autocast region it is called unchanged.
///
/// @code
/// auto fused = mezzo::autocast_function("mylib::fused", mezzo::CastPolicy::kLowerPrecision, torch::kCUDA,
///     [](const torch::Tensor& x, const torch::Tensor& weight) { ... });
/// policy.set("mylib::fused", mezzo::CastPolicy::kFloat32);   // in one scope, say
/// @endcode
///
/// Casts arguments of type Tensor, std::optional<Tensor> and std::vector<Tensor>. Other arguments
/// pass through. As thread-safe as `function`.
/// @param name  process-wide, with "::"; several functions may share a name
/// @param policy  kLowerPrecision, kFloat32, kPromote, kBanned or kUntouched
/// @throws c10::ValueError  for another policy, or a name without "::"
/// @see torch.library.register_autocast (Python), which supports only lower precision
template <class Function>
[[nodiscard]] auto autocast_function(std::string name,
                                     CastPolicy policy,
                                     c10::DeviceType device_type,
                                     Function&& function) {
  detail::register_function(name, policy);
  return [name = std::move(name), policy, device_type,
          wrapped = std::forward<Function>(function)]<class... Args>(Args&&... args) -> decltype(auto) {
    detail::FunctionScope scope(name, policy, device_type);
    (detail::consider(scope, args), ...);
    return std::invoke(wrapped, detail::cast_argument(scope, std::forward<Args>(args))...);
  };
}

/// Runs the forward of a `torch::autograd::Function` as Python's `torch.amp.custom_fwd` does, and
/// saves the autocast state for `custom_bwd`. Thread-safe; never syncs.
///
/// @code
/// static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x, torch::Tensor y) {
///   return mezzo::custom_fwd(ctx, torch::kCUDA, torch::kFloat, [&](const torch::Tensor& a, const torch::Tensor& b) {
///     ctx->save_for_backward({a, b});
///     return a.mm(b);
///   }, x, y);
/// }
/// static variable_list backward(AutogradContext* ctx, variable_list grad) {
///   return mezzo::custom_bwd(ctx, torch::kCUDA, [&] { ... });
/// }
/// @endcode
///
/// @param cast_inputs  nullopt: `forward` runs under the current autocast state. A dtype: inside an
///     autocast region, floating tensors on `device_type` except float64 are cast to this dtype,
///     and `forward` runs with autocast off. Outside a region nothing is cast.
/// @return the result of `forward`
template <class Forward, class... Args>
auto custom_fwd(torch::autograd::AutogradContext* ctx,
                c10::DeviceType device_type,
                std::optional<c10::ScalarType> cast_inputs,
                Forward&& forward,
                Args&&... args) {
  const detail::ForwardScope scope(ctx, device_type, cast_inputs);
  return std::invoke(forward, detail::cast_argument(scope, std::forward<Args>(args))...);
}

/// Runs the backward of a `torch::autograd::Function` in the autocast state of its forward (on or
/// off, dtype, op policy), on any thread.
/// @return the result of `backward`, which is called without arguments
/// @throws c10::Error  if the forward of `ctx` did not run through `custom_fwd`
/// @see torch.amp.custom_bwd (Python)
template <class Backward>
auto custom_bwd(torch::autograd::AutogradContext* ctx, c10::DeviceType device_type, Backward&& backward) {
  const detail::BackwardScope scope(ctx, device_type);
  return std::invoke(backward);
}

}  // namespace mezzo
