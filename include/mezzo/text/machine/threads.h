#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>

namespace mezzo::text {

/// Processors that this process may use at a time, rounded down, one at least: of the machine, by taskset, and by the
/// quota of its container.
int64_t usable_processors();

/// Sets how many threads LibTorch computes with. For 0 it stays as OMP_NUM_THREADS or MKL_NUM_THREADS has it, where one
/// is set; else at most usable_processors(): LibTorch does not heed quotas, and threads beyond them wait for each
/// other.
void set_threads(int64_t threads);

}  // namespace mezzo::text
