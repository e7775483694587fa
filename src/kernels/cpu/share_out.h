#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace mezzo::kernels::cpu {

/// Shares out tasks 0 to `count` - 1, each to the thread that is free next: on machines that others use too, threads
/// with equal work do not end together. Every thread calls `work(next)` once, and there `next()` until it returns -1;
/// in between it may keep scratch. Who computes a task differs from run to run; results must not.
template <class Work>
void share_out(int64_t count, const Work& work) {
  std::atomic<int64_t> taken = 0;
  at::parallel_for(0, std::min<int64_t>(count, at::get_num_threads()), 1, [&](int64_t, int64_t) {
    work([&] {
      const int64_t task = taken++;
      return task < count ? task : -1;
    });
  });
}

}  // namespace mezzo::kernels::cpu
