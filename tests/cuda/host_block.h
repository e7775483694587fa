#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/arguments.h"

#define MEZZO_DEVICE inline
#define MEZZO_COLD inline
#define MEZZO_UNROLLED
#define MEZZO_ROLLED
#define MEZZO_UNROLLED_BY(count)

/// The thin layer of kernels/cuda/block.h on the CPU. Each thread of a block is a fiber, which runs
/// until it has to wait for others. So barriers, shuffles and shared memory work as on a GPU.
/// Behaviour that is undefined on a GPU is an error: threads that wait in different places, or
/// leave while others wait. Shared memory begins as NaN and has the size that the kernel declared.
/// Blocks run one after the other, and their threads in an order that changes from launch to
/// launch. Under ThreadSanitizer every fiber counts as a thread: a race between two threads of a
/// block is reported; not one between blocks, of which each ends before the next.
namespace mezzo::kernels::MEZZO_CUDA {

class BlockExecution;

class Block {
 public:
  Block(BlockExecution* execution, int thread) : execution_(execution), thread_(thread) {}

  int thread() const { return thread_; }
  int threads() const;
  int64_t index() const;
  int warp() const { return thread_ / 32; }

  void sync(std::source_location where = std::source_location::current()) const;
  void sync_warp(std::source_location where = std::source_location::current()) const;

  template <class T>
  T shuffle_xor(T value, int mask, std::source_location where = std::source_location::current()) const {
    static_assert(sizeof(T) <= 8);
    uint64_t mine = 0;
    std::memcpy(&mine, &value, sizeof value);
    const uint64_t other = exchange(mine, mask, where);
    std::memcpy(&value, &other, sizeof value);
    return value;
  }

  /// Calls `look` with what tells each lane's `mine`, where all lanes of the warp have come.
  template <class T, class Look>
  void show_warp(const T& mine, const Look& look, std::source_location where = std::source_location::current()) const {
    offer(reinterpret_cast<uintptr_t>(&mine), where);
    look([this](int lane) -> const T& { return *reinterpret_cast<const T*>(offered_by(lane)); });
    sync_warp(where);  // before it changes
  }

  template <class T>
  T* shared(int offset = 0) const {
    return reinterpret_cast<T*>(shared_memory() + offset);
  }

  /// Makes `execute` throw when the block is done.
  void require(bool holds, const char* what) const;

 private:
  unsigned char* shared_memory() const;
  uint64_t exchange(uint64_t mine, int mask, const std::source_location& where) const;
  void offer(uint64_t mine, const std::source_location& where) const;
  uint64_t offered_by(int lane) const;

  BlockExecution* execution_;
  int thread_;
};

/// Runs `thread` for every thread of every block of the grid.
/// @throws std::logic_error  if threads wait for each other in vain; names the awaited meeting, and
///   its place
/// @throws std::out_of_range  if a thread's requirement does not hold
void execute(int64_t blocks, int threads, int shared_bytes, const std::function<void(const Block&)>& thread);

/// A launch's use of some memory: of an allocation, or a part of it.
struct MemoryUse {
  const void* data;
  int64_t bytes_read = 0, bytes_written = 0;
};

/// Collects the memory that a kernel says that it uses. Null pointers do not count.
class MemoryUses {
 public:
  template <class T>
  void reads(const T* data, int64_t count) {
    add(data, count * int64_t{sizeof(T)}, 0);
  }
  template <class T>
  void writes(const T* data, int64_t count) {
    add(data, 0, count * int64_t{sizeof(T)});
  }
  template <class T>
  void updates(const T* data, int64_t count) {
    reads(data, count);
    writes(data, count);
  }
  void reads(const Span& span, int64_t count) { add(span.data, count * size_of(span), 0); }
  void writes(const Span& span, int64_t count) { add(span.data, 0, count * size_of(span)); }
  void updates(const Span& span, int64_t count) {
    reads(span, count);
    writes(span, count);
  }

  std::vector<MemoryUse> take() { return std::move(uses_); }

 private:
  static int64_t size_of(const Span& span) { return span.element == Element::kFloat ? 4 : 2; }
  void add(const void* data, int64_t bytes_read, int64_t bytes_written) {
    if (data != nullptr && bytes_read + bytes_written > 0) {
      uses_.push_back({data, bytes_read, bytes_written});
    }
  }

  std::vector<MemoryUse> uses_;
};

/// The name of a kernel's type, without namespaces and template arguments.
template <class Kernel>
std::string kernel_name() {
  std::string_view name = __PRETTY_FUNCTION__;
  const std::string_view before = "Kernel = ";
  name.remove_prefix(name.find(before) + before.size());
  name = name.substr(0, name.find_first_of("<;]"));
  return std::string(name.substr(name.rfind(':') + 1));
}

/// A kernel on its way to a stream.
struct Launched {
  std::string kernel;
  std::vector<MemoryUse> uses;
  std::function<void()> run;
};

/// Where launches go: at once to the caller's thread, unless somebody takes
/// them to a stream of theirs.
using LaunchHook = std::function<void(void* stream, Launched launched)>;
void set_launch_hook(LaunchHook hook);
void submit(void* stream, Launched launched);

/// While it lives, devices have these limits; else they have an H100's.
class WithDeviceLimits {
 public:
  explicit WithDeviceLimits(const DeviceLimits& limits);
  ~WithDeviceLimits();
  WithDeviceLimits(const WithDeviceLimits&) = delete;
  WithDeviceLimits& operator=(const WithDeviceLimits&) = delete;
};

/// Launches so far, for tests that count them.
int64_t num_launches();

template <class Kernel, class Grid, class Arguments>
void launch(const Grid& grid, void* stream, const Arguments& arguments) {
  MemoryUses uses;
  Kernel::uses(uses, arguments);
  submit(stream, {kernel_name<Kernel>(), uses.take(), [grid, arguments] {
                    execute(grid.blocks, grid.threads, grid.shared_bytes,
                            [&arguments](const Block& block) { Kernel::run(block, arguments); });
                  }});
}

}  // namespace mezzo::kernels::MEZZO_CUDA
