// What autocast adds to one op call: nanoseconds per call on 4 x 4 tensors, where an op is nearly
// all overhead. Prints JSON for benchmarks/autocast_overhead.py, which runs Python beside it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"

namespace {

constexpr int kCalls = 20000, kRepeats = 15;

double nanoseconds_per_call(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) {
    call();
  }
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kCalls;
}

void print_row(const char* region, const char* op, const std::function<void()>& call) {
  nanoseconds_per_call(call);  // warm-up
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    times.push_back(nanoseconds_per_call(call));
  }
  std::sort(times.begin(), times.end());
  std::printf("{\"region\": \"%s\", \"op\": \"%s\", \"median\": %.1f, \"min\": %.1f, \"max\": %.1f}\n", region, op,
              times[kRepeats / 2], times.front(), times.back());
}

void print_rows(const char* region) {
  const auto x = at::ones({4, 4}), low = x.to(at::kBFloat16), weight = at::ones({4, 4}).requires_grad_();
  print_row(region, "relu, not listed", [&] { x.relu(); });
  print_row(region, "mm of bfloat16, nothing to cast", [&] { low.mm(low); });
  print_row(region, "linear, input cast, weight kept", [&] { at::linear(x, weight); });
}

}  // namespace

int main() {
  at::set_num_threads(1);
  const auto region = [](mezzo::AutocastOptions options) {
    return std::make_unique<mezzo::AutocastGuard>(at::kCPU, at::kBFloat16, options);
  };
  print_rows("no autocast");
  {
    const auto guard = region({});
    print_rows("AutocastGuard");
  }
  {
    const auto guard = region(mezzo::AutocastOptions().policy(mezzo::OpPolicy::preset("cpu")));
    print_rows("AutocastGuard with a policy");
  }
  mezzo::CastLog log;
  const auto guard = region(mezzo::AutocastOptions().log(&log));
  print_rows("AutocastGuard with a log");
}
