#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

/// What visit_tensors.h tells types apart by; not for use elsewhere.
namespace mezzo::detail {

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
constexpr bool kIsOrderedDict = false;
template <class K, class V>
constexpr bool kIsOrderedDict<torch::OrderedDict<K, V>> = true;

/// Has a `visit_tensors` of its own, found beside the type.
template <class T>
concept VisitsItsTensors =
    requires(T& value, const std::function<void(at::Tensor&)>& visit) { visit_tensors(value, visit); };

template <class T>
concept IsTensor = std::is_base_of_v<at::TensorBase, T>;
template <class T>
concept IsPlain = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::nullopt_t> ||
                  std::is_same_v<T, std::monostate> || std::is_convertible_v<const T&, std::string_view>;
template <class T>
concept IsMap = requires { typename T::mapped_type; };
template <class T>
concept IsRange = requires(T& value) {
  typename T::value_type;
  value.begin();
  value.end();
};
template <class T>
concept IsTuple = requires { std::tuple_size<T>::value; };

template <class T>
constexpr bool can_visit();

template <class Tuple, size_t... I>
constexpr bool can_visit_all(std::index_sequence<I...>) {
  return (can_visit<std::remove_cvref_t<std::tuple_element_t<I, Tuple>>>() && ...);
}

template <class T>
constexpr bool can_visit() {
  if constexpr (IsTensor<T> || IsPlain<T> || VisitsItsTensors<T>) {
    return true;
  } else if constexpr (kIsOptional<T>) {
    return can_visit<typename T::value_type>();
  } else if constexpr (kIsOrderedDict<T>) {
    return can_visit<std::remove_cvref_t<decltype(std::declval<T&>().begin()->value())>>();
  } else if constexpr (IsMap<T>) {
    return can_visit<typename T::mapped_type>();
  } else if constexpr (IsRange<T>) {
    return can_visit<typename T::value_type>();
  } else if constexpr (IsTuple<T>) {
    return can_visit_all<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return false;
  }
}

}  // namespace mezzo::detail
