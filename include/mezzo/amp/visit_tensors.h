#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

/// Traits that classify types; not for use elsewhere.
namespace mezzo::detail {

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
constexpr bool kIsOrderedDict = false;
template <class K, class V>
constexpr bool kIsOrderedDict<torch::OrderedDict<K, V>> = true;

/// Has a `visit_tensors` function, found beside the type.
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

namespace mezzo {

/// Called with each tensor of a structure; may assign to it.
using TensorVisitor = std::function<void(at::Tensor&)>;

/// Types whose tensors mezzo finds. These are at::Tensor; numbers, enums and strings, which have no
/// tensors; and optionals, tuples, pairs, containers, values of maps and torch::OrderedDict of
/// these types, nested at will. For a custom type, write beside it:
/// @code
/// void visit_tensors(MyOutput& output, const mezzo::TensorVisitor& visit) { visit(output.logits); }
/// @endcode
template <class T>
concept TensorStructure = detail::can_visit<std::remove_cvref_t<T>>();

/// The same, except a bare number, enum or string.
template <class T>
concept TensorHolder = TensorStructure<T> && !detail::IsPlain<std::remove_cvref_t<T>>;

/// Calls `visit` with each tensor in `value`, also undefined ones, in a fixed order.
template <TensorStructure T>
void for_each_tensor(T& value, const TensorVisitor& visit) {
  using namespace detail;
  if constexpr (IsTensor<T>) {
    visit(value);
  } else if constexpr (VisitsItsTensors<T>) {
    visit_tensors(value, visit);
  } else if constexpr (IsPlain<T>) {
  } else if constexpr (kIsOptional<T>) {
    if (value.has_value()) {
      for_each_tensor(*value, visit);
    }
  } else if constexpr (kIsOrderedDict<T>) {
    for (auto& item : value) {
      for_each_tensor(item.value(), visit);
    }
  } else if constexpr (IsMap<T>) {
    std::vector<typename T::pointer> items;
    for (auto& item : value) {
      items.push_back(&item);
    }
    if constexpr (!requires { typename T::key_compare; }) {  // the order of an unordered map depends on its history
      std::sort(items.begin(), items.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    for (auto* item : items) {
      for_each_tensor(item->second, visit);
    }
  } else if constexpr (IsRange<T>) {
    if constexpr (!IsPlain<typename T::value_type>) {
      for (auto& item : value) {
        for_each_tensor(item, visit);
      }
    }
  } else {
    std::apply([&](auto&... items) { (for_each_tensor(items, visit), ...); }, value);
  }
}

}  // namespace mezzo
