#include "encoder/cpu/peak_rates.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>

#include "encoder/cpu/simd/kernels.h"

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

double rate_of(const PeakLoop& loop) {
  if (loop.run == nullptr) {
    return 0;
  }
  int64_t rounds = 1 << 12;
  while (seconds_of(loop, rounds, 1) < 0.01) {
    rounds *= 2;
  }
  const int threads = at::get_num_threads();
  double best = seconds_of(loop, rounds, threads);
  for (int i = 1; i < 5; ++i) {
    best = std::min(best, seconds_of(loop, rounds, threads));
  }
  return loop.operations_of_a_round * static_cast<double>(rounds) * threads / best;
}

}  // namespace

PeakRates peak_rates() {
  const PeakLoops& loops = *simd_kernels().peak;
  return {rate_of(loops.float32), rate_of(loops.bfloat16), rate_of(loops.int8)};
}

}  // namespace mezzo::encoder::cpu
