#include "mezzo/memory/cpu_memory_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "memory/block_pool.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace mezzo {
namespace {

/// Memory that the operating system backs with huge pages if it can; nullptr if there is none.
char* map_huge_pages(size_t size) {
#ifdef __linux__
  constexpr size_t kHugePage = size_t{2} << 20;
  void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  const auto address = reinterpret_cast<uintptr_t>(mapped);
  auto* aligned = static_cast<char*>(mapped) + ((address + kHugePage - 1) / kHugePage * kHugePage - address);
  madvise(aligned, size, MADV_HUGEPAGE);  // advice: without it, all works as well with small pages
  return aligned;
#else
  (void)size;
  return nullptr;
#endif
}

class CpuMemoryPool : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) {
      return {nullptr, c10::Device(c10::kCPU)};
    }
    auto* data = take(size);
    return {data, data, &give_back, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }

  CpuMemoryStats stats() {
    const std::lock_guard lock(mutex_);
    auto stats = stats_;
    stats.reserved = static_cast<int64_t>(medium_.reserved() + large_.reserved());
    return stats;
  }

 private:
  static constexpr size_t kSmallest = size_t{16} << 10;
  static constexpr size_t kLarge = size_t{16} << 20;  // kept apart, so that no small tensor nibbles at a large piece
  static constexpr size_t kSegment = size_t{64} << 20;

  /// In front of what is given out, so that a pointer to that is enough to take it back.
  struct alignas(64) Header {
    CpuMemoryPool* owner;
    BlockPool* pool;  // nullptr: not of a pool
    BlockPool::Block* block;
  };

  void* take(size_t size) {
    const size_t with_header = size + sizeof(Header);
    BlockPool* from = size >= kLarge ? &large_ : size >= kSmallest ? &medium_ : nullptr;
    BlockPool::Block* block = nullptr;
    void* memory = nullptr;
    if (from != nullptr) {
      const std::lock_guard lock(mutex_);
      block = from->allocate(with_header);
      if (block != nullptr) {
        memory = block->data;
        stats_.in_use += static_cast<int64_t>(block->size);
        stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
      }
    } else {
      memory = std::aligned_alloc(alignof(Header), (with_header + 63) / 64 * 64);
    }
    TORCH_CHECK(memory != nullptr, "not enough memory: a tensor of ", size, " bytes could not be allocated");
    return new (memory) Header{this, from, block} + 1;
  }

  static void give_back(void* data) {
    if (data == nullptr) {
      return;
    }
    auto* header = static_cast<Header*>(data) - 1;
    if (header->pool == nullptr) {
      std::free(header);
      return;
    }
    const std::lock_guard lock(header->owner->mutex_);
    header->owner->stats_.in_use -= static_cast<int64_t>(header->block->size);
    header->pool->free(header->block);
  }

  std::mutex mutex_;
  BlockPool medium_{map_huge_pages, kSegment}, large_{map_huge_pages, 0};
  CpuMemoryStats stats_;
};

std::atomic<CpuMemoryPool*> pool = nullptr;

}  // namespace

void use_cpu_memory_pool() {
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: tensors in static storage give their memory back after main.
    pool = new CpuMemoryPool;
    c10::SetCPUAllocator(pool, /*priority=*/1);
  });
#endif
}

CpuMemoryStats cpu_memory_stats() {
  auto* installed = pool.load();
  return installed != nullptr ? installed->stats() : CpuMemoryStats{};
}

}  // namespace mezzo
