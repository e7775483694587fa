#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mezzo::text {

/// Strings with ids, walked a byte at a time. Node 0 is the root; -1 means that the node does not exist.
///
/// A double array (Aoe, 1989): the child of node n for byte b lies at base(n) + b and names n as its parent. So a step
/// is one addition and one comparison.
class DoubleArrayTrie {
 public:
  DoubleArrayTrie() : DoubleArrayTrie(std::vector<std::pair<std::string_view, int32_t>>()) {}

  /// Of equal keys the first counts. Ids must not be negative. Takes time in proportion to the
  /// bytes of all keys, whatever they are, except sorting them.
  /// @throws c10::ValueError  if the array would need more than kMaxNodes.
  explicit DoubleArrayTrie(std::vector<std::pair<std::string_view, int32_t>> keys);

  int32_t child(int32_t node, char byte) const {
    const int32_t next = nodes_[node].base + static_cast<unsigned char>(byte);
    return nodes_[next].parent == node ? next : -1;
  }

  static constexpr int32_t kMaxNodes = 1 << 26;

  /// The number of places tried to lay out the nodes, and the number of places: the work and the memory.
  int64_t places_tried() const { return places_tried_; }
  int64_t size() const { return static_cast<int64_t>(nodes_.size()); }

  /// The id of the key that ends at `node`, or -1.
  int32_t id(int32_t node) const { return nodes_[node].id; }

  /// The node at the end of a walk along `bytes` from `node`, or -1.
  int32_t walk(int32_t node, std::string_view bytes) const;

  /// The id of a key, or -1.
  int32_t find(std::string_view key) const;

  struct Match {
    int32_t id = -1;
    size_t length = 0;
  };
  /// The longest key below `node` that `text` starts with; the empty key is never a match.
  Match longest_prefix(int32_t node, std::string_view text) const {
    Match match;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, text[i]);
      if (node < 0) break;
      if (nodes_[node].id >= 0) match = {nodes_[node].id, i + 1};
    }
    return match;
  }

 private:
  // A free place, which has no parent, is in a ring of all such: `base` and `id` are
  // the next and the one before.
  struct Node {
    int32_t base = 0;  // a leaf's children would name the root as their node, and never do
    int32_t parent = -1;
    int32_t id = -1;
  };
  int32_t end() const { return static_cast<int32_t>(nodes_.size()) - 256; }
  int32_t find_base(std::string_view bytes);
  bool fits(int32_t base, std::string_view bytes);
  void extend(int32_t end);
  void take(int32_t place, int32_t parent);

  std::vector<Node> nodes_;  // 256 longer than needed, so that `child` needs no bounds check
  int32_t next_try_;         // the free place from which on nodes with several children are tried
  int64_t places_tried_ = 0;
};

}  // namespace mezzo::text
