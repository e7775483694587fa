#include "mezzo/text/machine/examination.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "encoder/cpu/packed_products.h"
#include "encoder/cpu/peak_rate.h"
#include "encoder/cpu/products.h"
#include "encoder/int8_weights.h"
#include "kernels/cpu/simd/instruction_set.h"
#include "kernels/describe_device.h"
#include "mezzo/text/models/precision.h"
#include "text/machine/machine_memory.h"
#include "text/machine/processor.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRows = 1024, kHidden = 768, kInner = 3072;
constexpr int kRuns = 5, kMostRuns = 20;

template <class Work>
double seconds_of(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The median, after a run that is not measured.
template <class Work>
double median_seconds_of(const Work& work) {
  double seconds[kRuns];
  work();
  std::ranges::generate(seconds, [&] { return seconds_of(work); });
  std::ranges::nth_element(seconds, seconds + kRuns / 2);
  return seconds[kRuns / 2];
}

/// The best of the product and the best of `loop`, measured in turns: the clock changes, and other programs come and
/// go.
ProductRate product_rate(const char* precision,
                         const at::Tensor& x,
                         const at::Tensor& weight,
                         at::ScalarType dtype,
                         const encoder::cpu::PeakLoop& loop) {
  const auto multiply = [&] {
    encoder::cpu::Products products;
    products.add(x, weight.t(), dtype);
    products.compute();
  };
  const encoder::cpu::PeakRate peak(loop);
  const bool has_peak = loop.run != nullptr;
  ProductRate best{precision};
  multiply();
  for (int run = 0; run < kRuns || (has_peak && best.measured > best.peak && run < kMostRuns); ++run) {
    best.peak = std::max(best.peak, peak.measure());
    best.measured = std::max(best.measured, 2.0 * kRows * kHidden * kInner / seconds_of(multiply));
  }
  if (has_peak) best.peak = std::max(best.peak, best.measured);
  return best;
}

bool has(const Examination& machine, std::string_view instructions) {
  return std::ranges::find(machine.instructions, instructions) != machine.instructions.end();
}

void measure_products(Examination& machine) {
  const auto x = at::randn({kRows, kHidden}), weight = at::randn({kInner, kHidden});
  const auto& peak = *encoder::cpu::simd_kernels().peak;
  const auto add = [&](const char* precision, at::ScalarType dtype, const encoder::cpu::PeakLoop& loop) {
    const auto left = x.to(dtype), right = weight.to(dtype);
    // LibTorch chooses its own instructions. No loop here measures its use of AMX.
    const bool is_mezzos =
        encoder::cpu::can_be_packed({at::empty({kRows, kInner}, left.options()), {{left, right.t()}}, false});
    const bool has_loop = machine.kernels != "baseline" && (is_mezzos || machine.kernels == machine.best_kernels) &&
                          !(dtype == at::kBFloat16 && !is_mezzos && has(machine, "amx_bf16"));
    machine.products.push_back(product_rate(precision, left, right, dtype, has_loop ? loop : encoder::cpu::PeakLoop{}));
  };
  add("fp32", at::kFloat, peak.float32);
  add("bf16", at::kBFloat16, peak.bfloat16);
  add("fp16", at::kHalf, {});
  if (encoder::has_int8_products(at::kCPU)) {
    machine.products.push_back(product_rate("int8", x, encoder::int8_weight(weight), at::kFloat, peak.int8));
  }
}

double copied_bytes_a_second(int64_t available) {
  const int64_t bytes = std::clamp<int64_t>(available / 8, int64_t{1} << 20, int64_t{256} << 20);
  const auto from = at::ones({bytes / 4}), to = at::empty_like(from);
  return 2 * static_cast<double>(from.nbytes()) / median_seconds_of([&] { to.copy_(from); });
}

double seconds_of_this_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Keeps every thread busy for a while.
double measure_processor_share() {
  constexpr std::chrono::milliseconds kWhile(300);  // several periods of a quota, which are 100 ms long
  const int threads = at::get_num_threads();
  std::atomic<double> computed = 0;
  const double seconds = seconds_of([&] {
    const auto end = std::chrono::steady_clock::now() + kWhile;
    at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
      const double begin = seconds_of_this_thread();
      while (std::chrono::steady_clock::now() < end) {
      }
      computed += seconds_of_this_thread() - begin;
    });
  });
  return std::min(1.0, computed / (seconds * threads));
}

int64_t size_of_shared_memory() {
  struct statvfs facts{};
  return ::statvfs("/dev/shm", &facts) == 0 ? static_cast<int64_t>(facts.f_blocks * facts.f_frsize) : 0;
}

const ProductRate* rate_of(const Examination& machine, std::string_view precision) {
  const auto found = std::ranges::find(machine.products, precision, &ProductRate::precision);
  return found == machine.products.end() ? nullptr : &*found;
}

/// 0 if a rate is not known.
double times(const Examination& machine, std::string_view precision, std::string_view other) {
  const auto *one = rate_of(machine, precision), *two = rate_of(machine, other);
  return one != nullptr && two != nullptr && two->measured > 0 ? one->measured / two->measured : 0;
}

void advise_on_training(const Examination& machine, MachineAdvice& advice) {
  const bool has_bf16 = machine.kernels == "avx512_bf16" || machine.kernels == "avx512_amx";
  advice.precision = has_bf16 ? "bf16" : "fp32";
  advice.reason = has_bf16
                      ? fmt::format(
                            "the processor multiplies bfloat16 {:.2g} times as fast as float32; bfloat16 has float32's "
                            "range, so the loss needs no scaling",
                            times(machine, "bf16", "fp32"))
                      : "the kernels in use have no instructions for bfloat16: half types save memory here, not time";
}

void advise_on_prediction(const Examination& machine, MachineAdvice& advice) {
  const double gain = times(machine, "int8", advice.precision);
  constexpr double kWorthIt = 1.3;
  const bool is_worth_it = gain >= kWorthIt;
  advice.prediction = is_worth_it ? "int8" : advice.precision;
  advice.prediction_reason =
      is_worth_it
          ? fmt::format("its products are {:.2g} times as fast as {}'s; mezzo check-int8 measures the loss of accuracy",
                        gain, advice.precision)
          : fmt::format("products in int8 are {:.2g} times as fast, and round more", gain);
  if (gain == 0) advice.prediction_reason = "the kernels in use have no products in int8";
}

}  // namespace

Examination examine() {
  const auto cpu = processor();
  const auto memory = machine_memory(at::kCPU);
  Examination machine{
      .processor = cpu.name,
      .instructions = cpu.instructions,
      .kernels = kernels::cpu::name_of(kernels::cpu::instruction_set()),
      .best_kernels =
          kernels::cpu::name_of(std::max(kernels::cpu::best_instruction_set(), kernels::cpu::instruction_set())),
      .num_processors = cpu.online,
      .num_usable = cpu.usable,
      .num_threads = at::get_num_threads(),
      .quota = cpu.quota,
      .memory_bytes = memory.total,
      .available_bytes = memory.available,
      .shared_memory_bytes = size_of_shared_memory(),
      .memory_source = memory.source,
      .libtorch = TORCH_VERSION,
      .libtorch_has_cuda = at::globalContext().hasCUDART(),
      .threads_are_set = std::getenv("OMP_NUM_THREADS") != nullptr || std::getenv("MKL_NUM_THREADS") != nullptr};
  std::error_code none;
  machine.has_nvidia_driver = fs::exists("/proc/driver/nvidia/version", none);
  for (int64_t i = 0; i < cuda_device_count(); ++i) {
    machine.gpus.push_back(kernels::describe_device({at::kCUDA, static_cast<c10::DeviceIndex>(i)}));
  }
#ifndef __OPTIMIZE__
  machine.is_optimized = false;
#endif
  const at::NoGradGuard no_grad;
  machine.copied_bytes = copied_bytes_a_second(memory.available);
  measure_products(machine);
  machine.processor_share = measure_processor_share();
  return machine;
}

MachineAdvice advice_of(const Examination& machine) {
  MachineAdvice advice;
  advise_on_training(machine, advice);
  advise_on_prediction(machine, advice);
  const auto tell = [&](bool is_so, const auto& what, const auto& remedy) {
    if (is_so) advice.problems.push_back({what(), remedy});
  };
  const double may_use = machine.quota > 0 ? std::min<double>(machine.quota, machine.num_usable) : machine.num_usable;
  tell(
      machine.kernels != machine.best_kernels,
      [&] { return fmt::format("kernels run in {}, and the processor has {}", machine.kernels, machine.best_kernels); },
      "unset MEZZO_CPU_CAPABILITY");
#ifdef __x86_64__
  tell(
      machine.best_kernels == "baseline",
      [] { return "the processor has no AVX2, so that all is several times slower"; },
      "use another machine, or a virtual processor type with AVX2");
#endif
  tell(
      machine.num_threads > std::ceil(may_use),
      [&] {
        return fmt::format(
            "{} threads, but the container or taskset allows {:.3g} at a time: threads wait for each other",
            machine.num_threads, may_use);
      },
      fmt::format("pass --threads {0:.0f}, or set OMP_NUM_THREADS to {0:.0f}", std::max(1.0, std::floor(may_use))));
  tell(
      machine.threads_are_set && machine.num_threads < std::floor(may_use),
      [&] {
        return fmt::format("OMP_NUM_THREADS or MKL_NUM_THREADS limits mezzo to {} of {:.0f} possible threads",
                           machine.num_threads, may_use);
      },
      "unset it, or pass --threads");
  tell(
      machine.processor_share < 0.9,
      [&] {
        return fmt::format("other programs{} take {:.0f} % of the time of {} threads, so the rates above are low",
                           machine.quota > 0 ? ", or the CPU quota of the container," : "",
                           100 * (1 - machine.processor_share), machine.num_threads);
      },
      machine.quota > 0 ? "end the other programs, which top shows, or raise the quota"
                        : "end the other programs, which top shows, or try again later");
  constexpr int64_t kGigabyte = 1'000'000'000;
  tell(
      machine.available_bytes < 3 * kGigabyte,
      [&] {
        return fmt::format("{:.1f} GB of memory are free ({}), and a BERT-base takes some 2.5 GB to train",
                           1e-9 * static_cast<double>(machine.available_bytes), machine.memory_source);
      },
      "end other programs, or train with --lora, --gradient-checkpointing or smaller batches");
  tell(
      machine.shared_memory_bytes < kGigabyte / 2,
      [&] {
        return fmt::format(
            "/dev/shm has {:.2f} GB. Ranks of one machine exchange gradients through it (BERT-base: 0.4 GB)",
            1e-9 * static_cast<double>(machine.shared_memory_bytes));
      },
      "start the container with --shm-size=1g, if ranks are to train here");
  tell(
      machine.has_nvidia_driver && !machine.libtorch_has_cuda,
      [] { return "there is an NVIDIA driver, but this LibTorch supports only the CPU"; },
      "install a torch for CUDA into the environment that mezzo is built with, and build mezzo again");
  tell(
      machine.has_nvidia_driver && machine.libtorch_has_cuda && machine.gpus.empty(),
      [] { return "there is an NVIDIA driver, but LibTorch finds no GPU"; },
      "check nvidia-smi, CUDA_VISIBLE_DEVICES, and whether the container has the GPU (--gpus all)");
  tell(
      !machine.is_optimized, [] { return "this is a debug build of mezzo, which is slow"; },
      "build it with --preset release");
  return advice;
}

}  // namespace mezzo::text
