#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "mezzo/amp/detail/visit_tensors.h"

namespace mezzo {

/// Called with each tensor of a structure; may assign to it.
using TensorVisitor = std::function<void(at::Tensor&)>;

/// Types whose tensors mezzo finds: at::Tensor; numbers, enums and strings, which have none; and
/// optionals, tuples, pairs, containers, maps' values and torch::OrderedDict of these, nested at
/// will. For a type of your own, write beside it
/// @code
/// void visit_tensors(MyOutput& output, const mezzo::TensorVisitor& visit) { visit(output.logits); }
/// @endcode
template <class T>
concept TensorStructure = detail::can_visit<std::remove_cvref_t<T>>();

/// The same, but for a bare number, enum or string.
template <class T>
concept TensorHolder = TensorStructure<T> && !detail::IsPlain<std::remove_cvref_t<T>>;

/// Calls `visit` with each tensor in `value`, undefined ones too, in a fixed order.
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
