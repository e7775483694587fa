#include "text/double_array_trie.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

namespace mezzo::text {

DoubleArrayTrie::DoubleArrayTrie(std::vector<std::pair<std::string_view, int32_t>> keys) {
  std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Range {
    int32_t node;
    size_t begin, end, depth;  // the keys that share their first `depth` bytes, which lead to `node`
  };
  nodes_.resize(1 + 256);
  std::vector<Range> queue = {{0, 0, keys.size(), 0}};  // breadth first: the nodes near the root lie together
  std::string bytes;
  std::vector<Range> children;
  for (size_t next = 0; next < queue.size(); ++next) {
    Range range = queue[next];
    while (range.begin < range.end && keys[range.begin].first.size() == range.depth) {
      if (nodes_[range.node].id < 0) nodes_[range.node].id = keys[range.begin].second;
      ++range.begin;
    }
    if (range.begin == range.end) continue;
    bytes.clear();
    children.clear();
    for (size_t i = range.begin; i < range.end; ++i) {
      const char byte = keys[i].first[range.depth];
      if (bytes.empty() || bytes.back() != byte) {
        bytes.push_back(byte);
        children.push_back({0, i, i, range.depth + 1});
      }
      children.back().end = i + 1;
    }
    const int32_t base = find_base(bytes);
    nodes_[range.node].base = base;
    for (size_t i = 0; i < children.size(); ++i) {
      children[i].node = base + static_cast<unsigned char>(bytes[i]);
      nodes_[children[i].node].parent = range.node;
      queue.push_back(children[i]);
    }
  }
}

/// The first place where all the children, in the order of their bytes as unsigned numbers, find free nodes.
int32_t DoubleArrayTrie::find_base(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<int32_t>(static_cast<unsigned char>(bytes[i])); };
  while (nodes_[first_free_].parent >= 0) {
    if (static_cast<size_t>(++first_free_) + 256 >= nodes_.size()) nodes_.resize(nodes_.size() * 2);
  }
  constexpr int kPatience = 512;  // crowded nodes are not tried for ever
  int tries = 0;
  for (int32_t first = std::max(first_free_, byte(0) + 1);; ++first) {
    TORCH_CHECK_VALUE(first < std::numeric_limits<int32_t>::max() / 2, "DoubleArrayTrie: the vocabulary is too large");
    while (static_cast<size_t>(first) + 512 >= nodes_.size()) nodes_.resize(nodes_.size() * 2);
    if (nodes_[first].parent >= 0) continue;
    const int32_t base = first - byte(0);
    size_t i = 1;
    while (i < bytes.size() && nodes_[base + byte(i)].parent < 0) ++i;
    if (i == bytes.size()) return base;
    if (++tries == kPatience) first_free_ = std::max(first_free_, first - kPatience);
  }
}

int32_t DoubleArrayTrie::walk(int32_t node, std::string_view bytes) const {
  for (size_t i = 0; i < bytes.size() && node >= 0; ++i) node = child(node, bytes[i]);
  return node;
}

int32_t DoubleArrayTrie::find(std::string_view key) const {
  const int32_t node = walk(0, key);
  return node < 0 ? -1 : id(node);
}

}  // namespace mezzo::text
