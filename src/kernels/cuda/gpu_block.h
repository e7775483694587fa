#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define MEZZO_DEVICE __device__ __forceinline__
/// For rarely called functions, which would make a kernel's instructions too many to stay near a multiprocessor.
#define MEZZO_COLD static __device__ __noinline__
/// UNROLLED: before a loop that indexes values in registers. ROLLED: before a loop whose instructions must not be
/// repeated.
#define MEZZO_UNROLLED _Pragma("unroll")
#define MEZZO_ROLLED _Pragma("unroll 1")
/// Before a loop with `count` rounds in flight at a time.
#define MEZZO_UNROLLED_BY(count) MEZZO_PRAGMA(unroll count)
#define MEZZO_PRAGMA(words) _Pragma(#words)

/// The thin layer of block.h, for GPUs.
namespace mezzo::kernels::MEZZO_CUDA {

class Block {
 public:
  MEZZO_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  MEZZO_DEVICE int threads() const { return static_cast<int>(blockDim.x); }
  MEZZO_DEVICE int64_t index() const { return blockIdx.x; }  ///< of the block
  /// Of the thread; told by one of its lanes, so that the compiler knows that all have the same.
  MEZZO_DEVICE int warp() const { return __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x / 32), 0); }

  /// Waits for all threads of the block, and makes their writes visible.
  MEZZO_DEVICE void sync() const { __syncthreads(); }

  /// The same for the threads of this warp.
  MEZZO_DEVICE void sync_warp() const { __syncwarp(); }

  /// The `value` of the thread of this warp whose number differs in the bits of `mask`.
  template <class T>
  MEZZO_DEVICE T shuffle_xor(T value, int mask) const {
    return __shfl_xor_sync(0xFFFFFFFF, value, mask);
  }

  /// The memory that the block's threads share, from byte `offset` on; aligned to 16.
  template <class T>
  MEZZO_DEVICE T* shared(int offset = 0) const {
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return reinterpret_cast<T*>(shared_memory + offset);
  }

  /// Ends the grid with an error, which the next call that asks the device finds,
  /// where something is not so.
  MEZZO_DEVICE static void require(bool holds, const char* what) {
    if (!holds) {
      printf("mezzo: %s\n", what);
      __trap();
    }
  }
};

/// Large arguments would be copied for each thread, were they not constant.
template <class Kernel, class Arguments>
__global__ void entry(const __grid_constant__ Arguments arguments) {
  Kernel::run(Block(), arguments);
}

/// For kernels that state the most threads of their blocks, and the least number of blocks that one multiprocessor
/// should hold. The compiler keeps to the registers that there are then.
template <class Kernel, class Arguments>
__global__ __launch_bounds__(Kernel::kMostThreads,
                             Kernel::kBlocksAtOnce) void bounded_entry(const __grid_constant__ Arguments arguments) {
  Kernel::run(Block(), arguments);
}

template <class Kernel, class Arguments>
constexpr auto entry_of() {
  if constexpr (requires { Kernel::kBlocksAtOnce; }) {
    return &bounded_entry<Kernel, Arguments>;
  } else {
    return &entry<Kernel, Arguments>;
  }
}

namespace detail {
/// A launch that is refused is a mistake of mezzo, or follows an error that the device had
/// before; the caller says which.
void check_launch(cudaError_t error);
}  // namespace detail

/// Queues `Kernel` on `stream` of the current device and returns. Not for empty grids.
template <class Kernel, class Grid, class Arguments>
void launch(const Grid& grid, void* stream, const Arguments& arguments) {
  constexpr int kAlwaysThere = 48 * 1024;
  if (grid.shared_bytes > kAlwaysThere) {
    detail::check_launch(cudaFuncSetAttribute(entry_of<Kernel, Arguments>(),
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes));
  }
  entry_of<Kernel, Arguments>()<<<static_cast<unsigned>(grid.blocks), grid.threads, grid.shared_bytes,
                                  static_cast<cudaStream_t>(stream)>>>(arguments);
  detail::check_launch(cudaGetLastError());
}

}  // namespace mezzo::kernels::MEZZO_CUDA
