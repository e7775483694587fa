#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace mezzo {

/// `items` grouped by `key_of`, such as items that one kernel can take together; groups, and items in each, in order of
/// appearance.
template <class Item, class KeyOf>
std::vector<std::vector<Item>> grouped(std::vector<Item> items, const KeyOf& key_of) {
  std::vector<std::vector<Item>> groups;
  for (Item& item : items) {
    const auto key = key_of(item);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& each) { return key_of(each[0]) == key; });
    if (group == groups.end()) {
      group = groups.emplace(groups.end());
    }
    group->push_back(std::move(item));
  }
  return groups;
}

inline auto device_of(const at::Tensor& tensor) { return tensor.device(); }
inline auto device_and_dtype_of(const at::Tensor& tensor) { return std::pair(tensor.device(), tensor.scalar_type()); }

}  // namespace mezzo
