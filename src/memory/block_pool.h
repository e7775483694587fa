#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <unordered_set>

namespace mezzo {

/// Gives out pieces of large segments, best fit first, and joins them again when they come back. Not thread-safe.
class BlockPool {
 public:
  /// A piece of a segment, in a list of its neighbours.
  struct Block {
    char* data;
    size_t size;
    bool is_free;
    Block *before, *after;  // in the same segment
  };

  /// @param reserve  returns memory for a segment of that many bytes, or nullptr; never asked to take it back
  /// @param segment_size  bytes asked for at a time; larger requests are asked for as they are
  BlockPool(std::function<char*(size_t)> reserve, size_t segment_size);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// At least `size` bytes, aligned to kGranule; nullptr where `reserve` returned that.
  Block* allocate(size_t size);
  void free(Block* block);

  size_t reserved() const { return reserved_; }

  static constexpr size_t kGranule = 512;

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : std::less<>()(a->data, b->data);
    }
  };

  Block* add_segment(size_t size);
  void split(Block* block, size_t size);
  void join_with_next(Block* block);

  std::function<char*(size_t)> reserve_;
  size_t segment_size_;
  size_t reserved_ = 0;
  std::set<Block*, BySize> free_;
  std::unordered_set<Block*> all_;
};

}  // namespace mezzo
