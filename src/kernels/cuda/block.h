#pragma once

#include <cstdint>

#include "kernels/cuda/arguments.h"

/// The interface between kernels and a GPU, and their launch. `.cu` files use CUDA only through
/// this header, the half types of elements.h and the products of tensor_cores.h. nvcc compiles them
/// for GPUs. The tests compile the same source as C++, and run a block's threads on the CPU
/// (tests/cuda/host_block.h).
///
/// A kernel is a type with two functions. Every thread of every block calls `static void run(const Block& block, const
/// Arguments& arguments)`, marked MEZZO_DEVICE. No GPU needs `template <class Memory> static void uses(Memory& memory,
/// const Arguments& arguments)`. It lists the memory that the kernel reads, writes or updates, and its least number of
/// elements, none counted twice. Tests let a kernel at no other memory, and count by it the bytes that it moves.
/// Threads of a block come in warps of 32, all of them full. All threads of a block reach the same `sync`, and all of a
/// warp the same shuffle.
#ifdef __CUDACC__
#include "kernels/cuda/gpu_block.h"
#else
#include "cuda/host_block.h"
#endif

namespace mezzo::kernels::MEZZO_CUDA {

constexpr int kWarp = 32;

/// How many blocks of how many threads, a multiple of kWarp, and bytes of memory
/// that a block's threads share.
struct Grid {
  int64_t blocks;
  int threads;
  int shared_bytes = 0;
};

/// The sum of `value` over the warp, in each of its threads; always added in the same order.
template <class T>
MEZZO_DEVICE T warp_sum(const Block& block, T value) {
  for (int other = kWarp / 2; other > 0; other /= 2) {
    value += block.shuffle_xor(value, other);
  }
  return value;
}

/// The sum of `value` over the block, in each of its threads; always added in the same order.
/// @param scratch  shared memory for a T a warp, which the block may use
///   again after its next `sync`
template <class T>
MEZZO_DEVICE T block_sum(const Block& block, T value, T* scratch) {
  value = warp_sum(block, value);
  const int warps = block.threads() / kWarp;
  if (block.thread() % kWarp == 0) {
    scratch[block.thread() / kWarp] = value;
  }
  block.sync();
  T sum = scratch[0];
  for (int warp = 1; warp < warps; ++warp) {
    sum += scratch[warp];
  }
  return sum;
}

}  // namespace mezzo::kernels::MEZZO_CUDA
