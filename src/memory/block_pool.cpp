#include "memory/block_pool.h"

#include <algorithm>
#include <utility>

namespace mezzo {
namespace {

size_t round_up(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

}  // namespace

BlockPool::BlockPool(std::function<char*(size_t)> reserve, size_t segment_size)
    : reserve_(std::move(reserve)), segment_size_(segment_size) {}

BlockPool::~BlockPool() {
  for (Block* block : all_) {
    delete block;
  }
}

BlockPool::Block* BlockPool::allocate(size_t size) {
  size = std::max(round_up(size, kGranule), kGranule);
  Block wanted{nullptr, size, true, nullptr, nullptr};
  const auto fitting = free_.lower_bound(&wanted);
  Block* block = nullptr;
  if (fitting != free_.end()) {
    block = *fitting;
    free_.erase(fitting);
  } else {
    block = add_segment(size);
    if (block == nullptr) {
      return nullptr;
    }
  }
  block->is_free = false;
  split(block, size);
  return block;
}

void BlockPool::free(Block* block) {
  block->is_free = true;
  if (block->after != nullptr && block->after->is_free) {
    free_.erase(block->after);
    join_with_next(block);
  }
  if (block->before != nullptr && block->before->is_free) {
    block = block->before;
    free_.erase(block);
    join_with_next(block);
  }
  free_.insert(block);
}

BlockPool::Block* BlockPool::add_segment(size_t size) {
  const size_t bytes = std::max(size, segment_size_);
  char* data = reserve_(bytes);
  if (data == nullptr) {
    return nullptr;
  }
  reserved_ += bytes;
  return *all_.insert(new Block{data, bytes, true, nullptr, nullptr}).first;
}

/// Leaves `size` bytes in `block` and frees what is behind them.
void BlockPool::split(Block* block, size_t size) {
  if (block->size == size) {
    return;
  }
  auto* rest = new Block{block->data + size, block->size - size, true, block, block->after};
  if (rest->after != nullptr) {
    rest->after->before = rest;
  }
  block->after = rest;
  block->size = size;
  all_.insert(rest);
  free_.insert(rest);
}

void BlockPool::join_with_next(Block* block) {
  Block* next = block->after;
  block->size += next->size;
  block->after = next->after;
  if (block->after != nullptr) {
    block->after->before = block;
  }
  all_.erase(next);
  delete next;
}

}  // namespace mezzo
