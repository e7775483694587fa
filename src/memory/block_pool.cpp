#include "memory/block_pool.h"

#include <ATen/ceil_div.h>

#include <algorithm>
#include <utility>

namespace mezzo {
namespace {

constexpr size_t kPage = PageSource::kPage;
constexpr size_t kLeastKept = size_t{64} << 20;

}  // namespace

struct BlockPool::Segment {
  char* data;
  bool is_large;
  std::vector<bool> has_memory;  // page by page
  size_t end = 0;                // no page from here on has memory
  Block* last = nullptr;
};

BlockPool::BlockPool(PageSource& source, size_t segment_size) : source_(source), segment_size_(segment_size) {}

BlockPool::~BlockPool() {
  for (const auto& segment : segments_) {
    for (Block* block = segment->last; block != nullptr;) {
      delete std::exchange(block, block->before);
    }
  }
}

std::set<BlockPool::Block*, BlockPool::BySize>& BlockPool::free_blocks(const Block* block) {
  return free_[block->segment->is_large ? 1 : 0];
}

BlockPool::Block* BlockPool::allocate(size_t size) {
  size = std::max(at::round_up(size, kGranule), kGranule);
  const bool is_large = size >= kLarge;
  Block wanted{nullptr, size, true, nullptr, nullptr, nullptr};
  const auto fitting = free_[is_large ? 1 : 0].lower_bound(&wanted);
  Block* block = fitting != free_[is_large ? 1 : 0].end() ? *fitting : add_segment(size, is_large);
  const size_t committed_before = committed_;
  if (block == nullptr || !commit(*block->segment, block->data, size)) {
    return nullptr;
  }
  free_blocks(block).erase(block);
  block->is_free = false;
  split(block, size);
  in_use_ += size;
  peak_in_use_ = std::max(peak_in_use_, in_use_);
  if (committed_ > committed_before && committed_ > peak_in_use_ + std::max(peak_in_use_ / 2, kLeastKept)) {
    give_back_down_to(peak_in_use_ + std::max(peak_in_use_ / 4, kLeastKept / 2));  // not again at the next piece
  }
  return block;
}

void BlockPool::free(Block* block) {
  in_use_ -= block->size;
  block->is_free = true;
  if (block->after != nullptr && block->after->is_free) {
    free_blocks(block).erase(block->after);
    join_with_next(block);
  }
  if (block->before != nullptr && block->before->is_free) {
    block = block->before;
    free_blocks(block).erase(block);
    join_with_next(block);
  }
  free_blocks(block).insert(block);
}

BlockPool::Block* BlockPool::add_segment(size_t size, bool is_large) {
  const size_t least = at::round_up(size, kPage);
  size_t bytes = std::max(least, segment_size_);
  char* data = source_.reserve(bytes);
  if (data == nullptr && bytes > least) {
    bytes = least;
    data = source_.reserve(bytes);
  }
  if (data == nullptr) {
    return nullptr;
  }
  auto& segment = segments_.emplace_back(std::make_unique<Segment>());
  segment->data = data;
  segment->is_large = is_large;
  segment->has_memory.resize(bytes / kPage);
  segment->last = new Block{data, bytes, true, segment.get(), nullptr, nullptr};
  free_blocks(segment->last).insert(segment->last);
  return segment->last;
}

/// Sees to it that all pages of a piece have memory.
bool BlockPool::commit(Segment& segment, const char* data, size_t size) {
  const auto begin = static_cast<size_t>(data - segment.data);
  const size_t end_page = at::round_up(begin + size, kPage) / kPage;
  for (size_t page = begin / kPage; page < end_page; ++page) {
    size_t run = 0;
    while (page + run < end_page && !segment.has_memory[page + run]) {
      ++run;
    }
    if (run == 0) {
      continue;
    }
    if (!source_.commit(segment.data + page * kPage, run * kPage)) {
      return false;
    }
    std::fill_n(segment.has_memory.begin() + static_cast<std::ptrdiff_t>(page), run, true);
    committed_ += run * kPage;
    page += run - 1;
    segment.end = std::max(segment.end, page + 1);
  }
  return true;
}

void BlockPool::give_back_down_to(size_t most) {
  for (const auto& segment : segments_) {
    for (const Block* block = segment->last; block != nullptr && committed_ > most; block = block->before) {
      if (block->is_free) {
        give_back(*block, most);
      }
    }
  }
}

/// Gives back whole pages of a free block, the last ones first, until `most` bytes are left in all.
void BlockPool::give_back(const Block& block, size_t most) {
  Segment& segment = *block.segment;
  const auto offset = static_cast<size_t>(block.data - segment.data);
  const size_t first = at::round_up(offset, kPage) / kPage;
  size_t end = std::min((offset + block.size) / kPage, segment.end);
  while (end > first && committed_ > most) {
    if (!segment.has_memory[end - 1]) {
      --end;
      continue;
    }
    const size_t wanted = at::round_up(committed_ - most, kPage) / kPage;
    size_t begin = end;
    while (begin > first && end - begin < wanted && segment.has_memory[begin - 1]) {
      --begin;
    }
    source_.give_back(segment.data + begin * kPage, (end - begin) * kPage);
    std::fill_n(segment.has_memory.begin() + static_cast<std::ptrdiff_t>(begin), end - begin, false);
    committed_ -= (end - begin) * kPage;
    if (segment.end == end) {
      segment.end = begin;
    }
    end = begin;
  }
}

/// Leaves `size` bytes in `block` and frees the rest.
void BlockPool::split(Block* block, size_t size) {
  if (block->size == size) {
    return;
  }
  auto* rest = new Block{block->data + size, block->size - size, true, block->segment, block, block->after};
  (rest->after != nullptr ? rest->after->before : block->segment->last) = rest;
  block->after = rest;
  block->size = size;
  free_blocks(rest).insert(rest);
}

void BlockPool::join_with_next(Block* block) {
  Block* next = block->after;
  block->size += next->size;
  block->after = next->after;
  (block->after != nullptr ? block->after->before : block->segment->last) = block;
  delete next;
}

}  // namespace mezzo
