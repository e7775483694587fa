#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace mezzo::kernels::cpu {

/// The first of `count` items that belong to thread `thread` of `threads`. Threads own neighbouring items, the same
/// ones in every kernel, so that each finds in its caches the rows that it wrote before. A fetch from a core that does
/// not share its last cache costs as much as one from memory.
inline int64_t share_begin(int64_t count, int64_t thread, int64_t threads) { return count * thread / threads; }

/// The tasks that are left of one thread's.
class alignas(64) Share {
 public:
  void set(int64_t begin, int64_t end) { left_ = static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(begin); }

  /// -1 if none is left.
  int64_t take_first() {
    return take([](uint32_t begin, uint32_t end) { return Taken{begin + 1, end, begin}; });
  }
  int64_t take_last() {
    return take([](uint32_t begin, uint32_t end) { return Taken{begin, end - 1, end - 1}; });
  }

 private:
  struct Taken {
    uint32_t begin, end, task;
  };

  template <class Choose>
  int64_t take(const Choose& choose) {
    for (uint64_t left = left_;;) {
      const auto begin = static_cast<uint32_t>(left), end = static_cast<uint32_t>(left >> 32);
      if (begin == end) {
        return -1;
      }
      const Taken taken = choose(begin, end);
      if (left_.compare_exchange_weak(left, uint64_t{taken.end} << 32 | taken.begin)) {
        return taken.task;
      }
    }
  }

  std::atomic<uint64_t> left_ = 0;  ///< the end in the upper half, the first in the lower one
};

/// Shares out tasks, of which thread t owns `ends[t - 1]` to `ends[t] - 1`; `ends` has one of each thread. A thread
/// that has finished takes tasks of others from their ends. On machines that others use too, threads with equal work do
/// not end together. Every thread calls `work(next)` once, and there `next()` until it returns -1; in between it may
/// keep scratch. Who computes a task differs from run to run; results must not.
template <class Work>
void share_out(const std::vector<int64_t>& ends, const Work& work) {
  const auto threads = static_cast<int64_t>(ends.size());
  std::vector<Share> shares(ends.size());
  for (int64_t t = 0; t < threads; ++t) {
    shares[t].set(t == 0 ? 0 : ends[t - 1], ends[t]);
  }
  at::parallel_for(0, std::min(ends.back(), threads), 1, [&](int64_t thread, int64_t) {
    work([&] {
      int64_t task = shares[thread].take_first();
      for (int64_t t = 1; task < 0 && t < threads; ++t) {
        task = shares[(thread + t) % threads].take_last();
      }
      return task;
    });
  });
}

/// Shares out tasks 0 to `count` - 1 in equal parts.
template <class Work>
void share_out(int64_t count, const Work& work) {
  std::vector<int64_t> ends;
  for (int64_t t = 0, threads = at::get_num_threads(); t < threads; ++t) {
    ends.push_back(share_begin(count, t + 1, threads));
  }
  share_out(ends, work);
}

}  // namespace mezzo::kernels::cpu
