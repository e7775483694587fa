#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>

namespace mezzo {

/// Makes LibTorch take the memory of CPU tensors of 16 KiB and more from a pool, for the rest of
/// the program. Its default allocator hands freed memory back to the operating system, which clears
/// every page anew when the next training step asks for it: a tenth of the time of a small model's
/// step.
///
/// The pool keeps freed memory, joined with its free neighbours, gives out the smallest piece that
/// fits, and asks for huge pages. It holds at most half more than was ever in use at one time, or
/// 64 MiB more if that is more, and gives back the rest. (A page of 2 MiB that a tensor lies on
/// stays whole.) Addresses are reserved for twice the machine's memory, at no cost but that top's
/// VIRT grows by it.
///
/// Call it at the start of `main`. Tensors made before keep their memory; calls after the first
/// change nothing. Thread-safe, as are allocations. Does nothing but on Linux, nor under
/// AddressSanitizer, which could not see overruns within the pool.
void use_cpu_memory_pool();

/// Bytes; zeros before `use_cpu_memory_pool`.
struct CpuMemoryStats {
  int64_t in_use = 0;       ///< by living tensors of 16 KiB and more
  int64_t peak_in_use = 0;  ///< since the start
  int64_t reserved = 0;     ///< taken from the operating system, and not given back
};

/// Of the pool. Thread-safe.
CpuMemoryStats cpu_memory_stats();

}  // namespace mezzo
