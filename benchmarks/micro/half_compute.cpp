// float16 and bfloat16 on this CPU: LibTorch's own kernels, and CpuHalfCompute; float32 beside
// them. Prints a markdown table of milliseconds. Usage: bench_half_compute [threads, default 1]
#include <ATen/Parallel.h>
#include <torch/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "mezzo/amp/cpu_half_compute.h"

namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Op = std::function<Tensor(const Tensors&)>;

struct Case {
  const char* name;
  std::vector<std::vector<int64_t>> sizes;
  Op op;
};

const std::vector<Case> kCases = {
    {"mm 512 x 768 x 768", {{512, 768}, {768, 768}}, [](const Tensors& t) { return t[0].mm(t[1]); }},
    {"addmm 512 x 768 x 768",
     {{768}, {512, 768}, {768, 768}},
     [](const Tensors& t) { return at::addmm(t[0], t[1], t[2]); }},
    {"linear 512 x 768 x 768",
     {{512, 768}, {768, 768}, {768}},
     [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }},
    {"bmm 96 x 64 x 64 x 64", {{96, 64, 64}, {96, 64, 64}}, [](const Tensors& t) { return t[0].bmm(t[1]); }},
    {"baddbmm 96 x 64 x 64 x 64",
     {{96, 64, 64}, {96, 64, 64}, {96, 64, 64}},
     [](const Tensors& t) { return at::baddbmm(t[0], t[1], t[2]); }},
    {"conv1d 64 to 64 channels, kernel 3, 8 x 512",
     {{8, 64, 512}, {64, 64, 3}},
     [](const Tensors& t) { return at::conv1d(t[0], t[1]); }},
    {"conv2d 64 to 64 channels, kernel 3, 4 x 32 x 32",
     {{4, 64, 32, 32}, {64, 64, 3, 3}},
     [](const Tensors& t) { return at::conv2d(t[0], t[1]); }},
    {"conv2d the same in 4 groups",
     {{4, 64, 32, 32}, {64, 16, 3, 3}},
     [](const Tensors& t) {
       return at::conv2d(t[0], t[1], {}, /*stride=*/1, /*padding=*/1, /*dilation=*/1, /*groups=*/4);
     }},
    {"conv2d the same, dilated",
     {{4, 64, 32, 32}, {64, 64, 3, 3}},
     [](const Tensors& t) { return at::conv2d(t[0], t[1], {}, /*stride=*/1, /*padding=*/1, /*dilation=*/2); }},
    {"conv3d 16 to 16 channels, kernel 3, 2 x 16 x 16 x 16",
     {{2, 16, 16, 16, 16}, {16, 16, 3, 3, 3}},
     [](const Tensors& t) { return at::conv3d(t[0], t[1]); }},
    {"conv_transpose2d 64 to 64 channels, kernel 3, 4 x 32 x 32",
     {{4, 64, 32, 32}, {64, 64, 3, 3}},
     [](const Tensors& t) { return at::conv_transpose2d(t[0], t[1]); }},
    {"attention, 8 x 12 heads, 128 tokens",
     {{8, 12, 128, 64}, {8, 12, 128, 64}, {8, 12, 128, 64}},
     [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2]); }},
};

/// The median of `repetitions`, after one to warm up.
double milliseconds(int repetitions, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i <= repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin() + 1, times.begin() + 1 + repetitions / 2, times.end());
  return times[1 + repetitions / 2];
}

double measure(const Case& benchmark, at::ScalarType dtype, bool backward) {
  Tensors leaves;
  for (const auto& size : benchmark.sizes) {
    leaves.push_back(at::randn(size).to(dtype).requires_grad_(backward));
  }
  const auto grad = at::randn_like(benchmark.op(leaves).detach());
  return milliseconds(/*repetitions=*/5, [&] {
    const auto output = benchmark.op(leaves);
    if (backward) {
      torch::autograd::grad({output}, leaves, {grad});
    }
  });
}

void print_row(const Case& benchmark, bool backward) {
  const double full = measure(benchmark, at::kFloat, backward);
  std::printf("| %s%s | %.2f |", benchmark.name, backward ? ", forward and backward" : "", full);
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const double libtorch = measure(benchmark, dtype, backward);
    const mezzo::CpuHalfCompute fast;
    const double mezzo = measure(benchmark, dtype, backward);
    std::printf(" %.2f | %.2f | %.1f |", libtorch, mezzo, libtorch / mezzo);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::atoi(argv[1]) : 1);
  std::printf("| ms, %d thread(s) | float32 | fp16 LibTorch | fp16 mezzo | times faster |", at::get_num_threads());
  std::printf(" bf16 LibTorch | bf16 mezzo | times faster |\n|---|---|---|---|---|---|---|---|\n");
  for (const auto& benchmark : kCases) {
    print_row(benchmark, /*backward=*/false);
    print_row(benchmark, /*backward=*/true);
  }
}
