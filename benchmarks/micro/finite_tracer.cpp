// What FiniteTracer costs: milliseconds of a training step (forward and backward) of eight layers
// of 512 units on batches of 256, in float32 on one thread. Prints a markdown table.
#include "mezzo/amp/finite_tracer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

namespace {

constexpr int64_t kBatch = 256, kUnits = 512;
constexpr int kLayers = 8, kWarmups = 3, kRuns = 25;

void train_step(const at::Tensor& input, const std::vector<at::Tensor>& weights) {
  auto x = input;
  for (const at::Tensor& weight : weights) {
    x = at::layer_norm(at::gelu(at::linear(x, weight)) + x, {kUnits});
  }
  x.square().mean().backward();
}

void print_row(const char* name, bool traced) {
  const auto input = at::randn({kBatch, kUnits});
  std::vector<at::Tensor> weights;
  for (int i = 0; i < kLayers; ++i) {
    weights.push_back((at::randn({kUnits, kUnits}) * 0.05).requires_grad_());
  }
  std::optional<mezzo::FiniteTracer> tracer;
  if (traced) {
    tracer.emplace();
  }
  std::vector<double> times;
  for (int run = -kWarmups; run < kRuns; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    train_step(input, weights);
    if (run >= 0) {
      times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
  }
  std::sort(times.begin(), times.end());
  std::printf("| %s | %.2f | %.2f to %.2f |\n", name, times[kRuns / 2], times.front(), times.back());
}

}  // namespace

int main() {
  at::set_num_threads(1);
  std::printf("| a training step | ms, median of %d | fastest to slowest |\n|---|---|---|\n", kRuns);
  print_row("without a tracer", /*traced=*/false);
  print_row("with FiniteTracer", /*traced=*/true);
}
