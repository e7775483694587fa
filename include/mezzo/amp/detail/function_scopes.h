#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/op_lists.h"

/// Implementation of the templates in custom_function.h; not for use elsewhere.
namespace mezzo::detail {

/// Casts the tensor arguments of one call of a registered function, and switches autocast off for
/// its inner ops during its lifetime.
class FunctionScope {
 public:
  [[nodiscard]] FunctionScope(const std::string& name, CastPolicy policy, c10::DeviceType device_type);

  /// For kPromote, which looks at every tensor before the first cast.
  void consider(const at::Tensor& tensor);
  at::Tensor cast(const at::Tensor& tensor) const;

 private:
  const std::string& name_;
  CastPolicy policy_;
  c10::DeviceType device_type_;
  CastLog* log_ = nullptr;
  std::optional<c10::ScalarType> to_;  // nullopt: nothing is cast
  std::optional<AutocastGuard> off_;
};

/// Sets autocast for the body of a forward, as custom_fwd specifies.
class ForwardScope {
 public:
  [[nodiscard]] ForwardScope(torch::autograd::AutogradContext* ctx,
                             c10::DeviceType device_type,
                             std::optional<c10::ScalarType> cast_inputs);
  at::Tensor cast(const at::Tensor& tensor) const;

 private:
  c10::DeviceType device_type_;
  std::optional<c10::ScalarType> to_;
  std::optional<AutocastGuard> off_;
};

/// The state that ForwardScope saved in `ctx`.
class BackwardScope {
 public:
  [[nodiscard]] BackwardScope(torch::autograd::AutogradContext* ctx, c10::DeviceType device_type);
  ~BackwardScope();

 private:
  std::optional<AutocastGuard> autocast_;
  std::unique_ptr<PolicyRegionGuard> policy_region_;
};

void register_function(const std::string& name, CastPolicy policy);

inline void consider(FunctionScope& scope, const at::Tensor& tensor) { scope.consider(tensor); }
inline void consider(FunctionScope& scope, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    scope.consider(tensor);
  }
}
template <class T>
void consider(FunctionScope&, const T&) {}

/// `argument` with its tensors cast by `scope`; an argument of another type is returned unchanged.
template <class Scope, class T>
decltype(auto) cast_argument(const Scope& scope, T&& argument) {
  using Type = std::remove_cvref_t<T>;
  if constexpr (std::is_same_v<Type, at::Tensor>) {
    return scope.cast(argument);
  } else if constexpr (std::is_same_v<Type, std::optional<at::Tensor>>) {
    return argument ? Type(scope.cast(*argument)) : Type();
  } else if constexpr (std::is_same_v<Type, std::vector<at::Tensor>>) {
    Type result;
    result.reserve(argument.size());
    for (const at::Tensor& tensor : argument) {
      result.push_back(scope.cast(tensor));
    }
    return result;
  } else {
    return std::forward<T>(argument);
  }
}

}  // namespace mezzo::detail
