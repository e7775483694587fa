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
#include <sys/resource.h>
#include <unistd.h>
#endif

namespace mezzo {
namespace {

#ifdef __linux__

/// Of the operating system, which backs them with huge pages if it can.
class SystemPages : public PageSource {
 public:
  char* reserve(size_t size) override {
    void* mapped = mmap(nullptr, size + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      return nullptr;
    }
    auto* data = static_cast<char*>(mapped);
    const size_t before = (kPage - reinterpret_cast<uintptr_t>(data) % kPage) % kPage;
    if (before > 0) {
      munmap(data, before);
    }
    munmap(data + before + size, kPage - before);
    madvise(data + before, size, MADV_HUGEPAGE);  // advice: without it, all works as well with small pages
    return data + before;
  }

  bool commit(char* begin, size_t size) override { return mprotect(begin, size, PROT_READ | PROT_WRITE) == 0; }

  void give_back(char* begin, size_t size) override { madvise(begin, size, MADV_DONTNEED); }
};

/// No pool can outgrow the machine's memory. A process with a limit on its addresses needs some for other memory.
size_t segment_size() {
  auto size = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    size = std::min(size, static_cast<size_t>(limit.rlim_cur) / 8);
  }
  return size / PageSource::kPage * PageSource::kPage;
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
    return {static_cast<int64_t>(blocks_.in_use()), static_cast<int64_t>(blocks_.peak_in_use()),
            static_cast<int64_t>(blocks_.committed())};
  }

 private:
  static constexpr size_t kSmallest = size_t{16} << 10;

  /// Precedes each piece that is given out, so that a pointer to the piece is enough to take it back.
  struct alignas(64) Header {
    CpuMemoryPool* owner;
    BlockPool::Block* block;  // nullptr: from malloc
  };

  void* take(size_t size) {
    const size_t with_header = size + sizeof(Header);
    BlockPool::Block* block = nullptr;
    if (size >= kSmallest) {
      const std::lock_guard lock(mutex_);
      block = blocks_.allocate(with_header);
    }
    void* memory = block != nullptr ? block->data : std::aligned_alloc(alignof(Header), (with_header + 63) / 64 * 64);
    TORCH_CHECK_WITH(OutOfMemoryError, memory != nullptr, "not enough memory: a tensor of ", size,
                     " bytes could not be allocated");
    return new (memory) Header{this, block} + 1;
  }

  static void give_back(void* data) {
    if (data == nullptr) {
      return;
    }
    auto* header = static_cast<Header*>(data) - 1;
    if (header->block == nullptr) {
      std::free(header);
      return;
    }
    const std::lock_guard lock(header->owner->mutex_);
    header->owner->blocks_.free(header->block);
  }

  std::mutex mutex_;
  SystemPages pages_;
  BlockPool blocks_{pages_, segment_size()};
};

std::atomic<CpuMemoryPool*> pool = nullptr;

#endif

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
#ifdef __linux__
  if (auto* installed = pool.load()) {
    return installed->stats();
  }
#endif
  return {};
}

}  // namespace mezzo
