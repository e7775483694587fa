#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>

namespace mezzo::text {

/// The number of processors that this process may use at a time: limited by the machine, by
/// taskset, and by the container's quota. Rounded down, at least 1.
int64_t usable_processors();

/// Sets the number of LibTorch's threads. 0 keeps OMP_NUM_THREADS or MKL_NUM_THREADS, if one is
/// set. Otherwise 0 means at most usable_processors(): LibTorch ignores quotas, and threads beyond
/// a quota wait for each other.
void set_threads(int64_t threads);

}  // namespace mezzo::text
