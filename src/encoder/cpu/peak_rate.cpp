#include "encoder/cpu/peak_rate.h"

#include <ATen/Parallel.h>

#include <chrono>

namespace mezzo::encoder::cpu {
namespace {

/// `threads` times, side by side.
double seconds_of(const PeakLoop& loop, int64_t rounds, int threads) {
  const auto begin = std::chrono::steady_clock::now();
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t end) {
    for (int64_t thread = first; thread < end; ++thread) {
      [[maybe_unused]] const volatile float kept = loop.run(rounds);
    }
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

PeakRate::PeakRate(const PeakLoop& loop) : loop_(loop) {
  while (loop_.run != nullptr && seconds_of(loop_, rounds_, 1) < 0.01) {
    rounds_ *= 2;
  }
}

double PeakRate::measure() const {
  if (loop_.run == nullptr) {
    return 0;
  }
  const int threads = at::get_num_threads();
  return loop_.operations_of_a_round * static_cast<double>(rounds_) * threads / seconds_of(loop_, rounds_, threads);
}

}  // namespace mezzo::encoder::cpu
