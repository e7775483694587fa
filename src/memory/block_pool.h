#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace mezzo {

/// A BlockPool's source of memory. Sizes and addresses are multiples of kPage.
class PageSource {
 public:
  static constexpr size_t kPage = size_t{2} << 20;  ///< a huge page

  virtual ~PageSource() = default;
  /// Addresses without memory behind them, for the life of the pool; nullptr if there are none.
  virtual char* reserve(size_t size) = 0;
  /// Puts memory behind some of them. Returns whether there was enough.
  virtual bool commit(char* begin, size_t size) = 0;
  /// Takes the memory from behind them.
  virtual void give_back(char* begin, size_t size) = 0;
};

/// Gives out pieces of long segments of addresses, best fit first, and joins them again when they come back. Pages get
/// memory when a piece on them is first given out, and keep it for the pieces after that. All pages together hold at
/// most 50% or 64 MiB more than the peak in use, the larger of the two. The rest is given back, starting at the ends of
/// the segments. (A page that a piece in use lies on cannot be.) Not thread-safe.
class BlockPool {
 public:
  struct Segment;

  /// A piece of a segment, in a list of its neighbours.
  struct Block {
    char* data;
    size_t size;
    bool is_free;
    Segment* segment;
    Block *before, *after;  // in the same segment
  };

  /// @param segment_size  addresses reserved at a time, a multiple of PageSource::kPage. Larger requests are reserved
  ///     as they are, and so are all if this many addresses cannot be had.
  BlockPool(PageSource& source, size_t segment_size);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// At least `size` bytes, aligned to kGranule; nullptr if the source has no more.
  Block* allocate(size_t size);
  void free(Block* block);

  size_t in_use() const { return in_use_; }
  size_t peak_in_use() const { return peak_in_use_; }
  size_t committed() const { return committed_; }  ///< bytes with memory behind them

  static constexpr size_t kGranule = 512;
  static constexpr size_t kLarge = size_t{16} << 20;  ///< kept apart, so that no small piece nibbles at a large one

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : std::less<>()(a->data, b->data);
    }
  };

  std::set<Block*, BySize>& free_blocks(const Block* block);
  Block* add_segment(size_t size, bool is_large);
  bool commit(Segment& segment, const char* data, size_t size);
  void give_back_down_to(size_t most);
  void give_back(const Block& block, size_t most);
  void split(Block* block, size_t size);
  void join_with_next(Block* block);

  PageSource& source_;
  size_t segment_size_;
  size_t in_use_ = 0, peak_in_use_ = 0, committed_ = 0;
  std::array<std::set<Block*, BySize>, 2> free_;  // those below kLarge, and the others
  std::vector<std::unique_ptr<Segment>> segments_;
};

}  // namespace mezzo
