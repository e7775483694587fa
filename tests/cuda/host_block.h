#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>

#define MEZZO_DEVICE inline

/// The thin layer of kernels/cuda/block.h on the CPU. Each thread of a block is a fiber, which
/// runs until it has to wait for others; so barriers, shuffles and shared memory do what they
/// do on a GPU, and what a GPU would leave undefined is an error: threads that wait in
/// different places, or leave while others wait. Shared memory begins as NaN and ends where the
/// kernel said. Blocks run one after the other, and their threads in an order that changes from
/// launch to launch. Under ThreadSanitizer every fiber counts as a thread: a race between two
/// threads of a grid is reported.
namespace mezzo::kernels::MEZZO_CUDA {

class BlockExecution;

class Block {
 public:
  Block(BlockExecution* execution, int thread) : execution_(execution), thread_(thread) {}

  int thread() const { return thread_; }
  int threads() const;
  int64_t index() const;
  int64_t count() const;

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

  template <class T>
  T* shared(int offset = 0) const {
    return reinterpret_cast<T*>(shared_memory() + offset);
  }

  /// Makes `execute` throw when the block is done.
  void require(bool holds, const char* what) const;

 private:
  unsigned char* shared_memory() const;
  uint64_t exchange(uint64_t mine, int mask, const std::source_location& where) const;

  BlockExecution* execution_;
  int thread_;
};

/// Runs `thread` for every thread of every block of the grid.
/// @throws std::logic_error  where threads wait for each other in vain; with
///   what is waited for, and where
/// @throws std::out_of_range  where a thread requires what is not so
void execute(int64_t blocks, int threads, int shared_bytes, const std::function<void(const Block&)>& thread);

/// Where launches go: at once to the caller's thread, unless somebody takes
/// them to a stream of theirs.
using LaunchHook = std::function<void(void* stream, std::function<void()> run)>;
void set_launch_hook(LaunchHook hook);
void submit(void* stream, std::function<void()> run);

/// Launches so far, for tests that count them.
int64_t num_launches();

template <class Kernel, class Grid, class Arguments>
void launch(const Grid& grid, void* stream, const Arguments& arguments) {
  submit(stream, [grid, arguments] {
    execute(grid.blocks, grid.threads, grid.shared_bytes,
            [&arguments](const Block& block) { Kernel::run(block, arguments); });
  });
}

}  // namespace mezzo::kernels::MEZZO_CUDA
