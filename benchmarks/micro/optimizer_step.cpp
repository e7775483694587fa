/// One optimizer step over the parameters of BERT-base: check, unscale, clip, AdamW and a
/// bfloat16 copy, by mezzo and by LibTorch's own operations in the same process.
/// Before, updates alone: of weights of a CNN, contiguous and channels_last, of many small tensors, and of
/// an embedding with sparse gradients. Prints tables in Markdown. Usage: bench_optimizer_step [--device cuda]

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bert_base_shapes.h"
#include "medians.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/sgd.h"

namespace {

using Tensors = std::vector<at::Tensor>;

struct Timing {
  double median_ms, fastest_ms, slowest_ms;
};

/// On a GPU, steps are queued as in training: the CPU's work for a step overlaps with the step
/// before.
Timing time_of(const c10::Device& device, const std::function<void()>& step) {
  const int steps = device.is_cpu() ? 1 : 10;
  std::vector<double> milliseconds;
  for (int run = -kWarmups; run < kRuns; ++run) {
    synchronize(device);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) {
      step();
    }
    synchronize(device);
    const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begin;
    if (run >= 0) {
      milliseconds.push_back(passed.count() / steps);
    }
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  return {milliseconds[kRuns / 2], milliseconds.front(), milliseconds.back()};
}

/// The parameters of a model with their gradients, half copies and moments.
struct Model {
  Model(const c10::Device& device, at::ScalarType gradient_dtype) {
    for (const auto& shape : mezzo::benchmarks::bert_base_shapes()) {
      params.push_back(at::randn(shape, device).mul_(0.02).requires_grad_());
      half_copies.push_back(params.back().detach().to(at::kBFloat16));
      gradients.push_back(at::randn(shape, device).to(gradient_dtype));
      count += params.back().numel();
    }
  }

  Tensors params, half_copies, gradients;
  int64_t count = 0;
};

/// mezzo's two passes; half gradients lie on the half copies, as a model with
/// master weights leaves them.
Timing time_mezzo(const c10::Device& device, at::ScalarType gradient_dtype) {
  Model model(device, gradient_dtype);
  mezzo::ParamGroup group{{}, 0.01};
  for (size_t i = 0; i < model.params.size(); ++i) {
    at::Tensor& owner = gradient_dtype == at::kFloat ? model.params[i] : model.half_copies[i];
    owner.mutable_grad() = model.gradients[i];
    group.params.push_back({"parameter " + std::to_string(i), model.params[i], model.half_copies[i]});
  }
  mezzo::AdamW optimizer({group}, mezzo::AdamWOptions().lr(3e-5).max_grad_norm(1.0));
  mezzo::GradScaler scaler(mezzo::GradScalerOptions().init_scale(1024));
  scaler.scale(at::ones({}, device));
  return time_of(device, [&] {
    scaler.step(optimizer);
    scaler.update();
  });
}

/// The step of a program without mezzo: GradScaler's unscale_, clip_grad_norm_, fused AdamW, and
/// the copies.
Timing time_libtorch(const c10::Device& device) {
  const at::NoGradGuard no_grad;
  Model model(device, at::kFloat);
  Tensors exp_avg, exp_avg_sq, steps, params;
  for (const at::Tensor& param : model.params) {
    params.push_back(param.detach());
    exp_avg.push_back(at::zeros_like(params.back()));
    exp_avg_sq.push_back(at::zeros_like(params.back()));
    steps.push_back(at::zeros({}, device));
  }
  const auto one = at::ones({}, device);  // gradients stay as they are from run to run
  return time_of(device, [&] {
    auto found_inf = at::zeros({}, device);
    at::_amp_foreach_non_finite_check_and_unscale_(model.gradients, found_inf, one);
    const auto norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(model.gradients, 2)), 2);
    at::_foreach_mul_(model.gradients, at::clamp((norm + 1e-6).reciprocal(), std::nullopt, 1.0));
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(params, model.gradients, exp_avg, exp_avg_sq, {}, steps, 3e-5, 0.9, 0.999, 0.01, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/std::nullopt, found_inf);
    at::_foreach_copy_(model.half_copies, params);
  });
}

/// Bytes a second that a copy of `bytes` reads and writes, by the whole device or all threads.
double copy_bandwidth(const c10::Device& device, int64_t bytes) {
  const auto source = at::ones({bytes}, at::TensorOptions(device).dtype(at::kByte));
  auto target = at::empty_like(source);
  const int64_t part = bytes / at::get_num_threads() / 64 * 64;
  if (!device.is_cpu()) {
    return 2.0 * static_cast<double>(bytes) / (time_of(device, [&] { target.copy_(source); }).median_ms / 1e3);
  }
  const auto timing = time_of(device, [&] {
    at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(target.data_ptr<uint8_t>() + i * part, source.const_data_ptr<uint8_t>() + i * part, part);
      }
    });
  });
  return 2.0 * static_cast<double>(part * at::get_num_threads()) / (timing.median_ms / 1e3);
}

void print_row(const char* name, const Timing& timing, double bytes, double bandwidth) {
  const double share = bytes / (timing.median_ms / 1e3) / bandwidth;
  std::printf("| %s | %.2f | %.2f – %.2f | %.2f | %.0f %% |\n", name, timing.median_ms, timing.fastest_ms,
              timing.slowest_ms, bytes / 1e9, 100 * share);
}

/// Weights and gradients of one row of the second table.
struct Weights {
  Tensors params, gradients;
};

/// The 3 x 3 convolutions of a ResNet-18 without its widest ones: 2.2 million weights.
Weights cnn(const c10::Device& device, at::MemoryFormat format) {
  Weights weights;
  for (const auto& [from, to] : std::vector<std::pair<int64_t, int64_t>>{{64, 64},
                                                                         {64, 64},
                                                                         {64, 64},
                                                                         {64, 64},
                                                                         {64, 128},
                                                                         {128, 128},
                                                                         {128, 128},
                                                                         {128, 128},
                                                                         {128, 256},
                                                                         {256, 256}}) {
    weights.params.push_back(at::randn({to, from, 3, 3}, device).contiguous(format));
    weights.gradients.push_back(at::randn({to, from, 3, 3}, device).contiguous(format));
  }
  return weights;
}

Weights small_tensors(const c10::Device& device) {
  Weights weights;
  for (int i = 0; i < 1000; ++i) {
    weights.params.push_back(at::randn({64}, device));
    weights.gradients.push_back(at::randn({64}, device));
  }
  return weights;
}

mezzo::ParamGroup group_of(const Weights& weights) {
  mezzo::ParamGroup group{{}, 0.01};
  for (size_t i = 0; i < weights.params.size(); ++i) {
    auto param = weights.params[i].detach().clone().requires_grad_();
    param.mutable_grad() = weights.gradients[i];
    group.params.push_back({"parameter " + std::to_string(i), param});
  }
  return group;
}

Timing time_mezzo_update(const c10::Device& device, const Weights& weights) {
  mezzo::AdamW optimizer({group_of(weights)}, mezzo::AdamWOptions().lr(3e-5));
  return time_of(device, [&] { optimizer.step(); });
}

/// What torch.optim.AdamW(fused=True) runs.
Timing time_libtorch_update(const c10::Device& device, const Weights& weights) {
  const at::NoGradGuard no_grad;
  Tensors params, exp_avg, exp_avg_sq, steps;
  for (const at::Tensor& param : weights.params) {
    params.push_back(param.clone());
    exp_avg.push_back(at::zeros_like(param));
    exp_avg_sq.push_back(at::zeros_like(param));
    steps.push_back(at::zeros({}, device));
  }
  return time_of(device, [&] {
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(params, weights.gradients, exp_avg, exp_avg_sq, {}, steps, 3e-5, 0.9, 0.999, 0.01, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
  });
}

/// 50,000 rows of 256, of which a batch reads 4,000.
Weights embedding(const c10::Device& device) {
  const auto rows = at::randint(50'000, {1, 4'000}, at::TensorOptions(device).dtype(at::kLong));
  return {{at::randn({50'000, 256}, device)},
          {at::sparse_coo_tensor(rows, at::randn({4'000, 256}, device), {50'000, 256}).coalesce()}};
}

template <class Optimizer>
Timing time_sparse(const c10::Device& device, const Weights& weights, Optimizer& optimizer, at::Tensor& param) {
  param.mutable_grad() = weights.gradients[0];
  return time_of(device, [&] { optimizer.step(); });
}

void print_update(const char* name, const Timing& mezzo, const Timing& libtorch) {
  std::printf("| %s | %.3f (%.3f – %.3f) | %.3f (%.3f – %.3f) | %.2f |\n", name, mezzo.median_ms, mezzo.fastest_ms,
              mezzo.slowest_ms, libtorch.median_ms, libtorch.fastest_ms, libtorch.slowest_ms,
              libtorch.median_ms / mezzo.median_ms);
}

void print_updates(const c10::Device& device) {
  std::printf("| update | mezzo, ms | LibTorch, fused, ms | times as fast |\n|---|---|---|---|\n");
  const auto compare = [&](const char* name, const Weights& weights) {
    const auto mezzo = time_mezzo_update(device, weights);
    print_update(name, mezzo, time_libtorch_update(device, weights));
  };
  compare("AdamW, convolutions, contiguous", cnn(device, at::MemoryFormat::Contiguous));
  compare("AdamW, convolutions, channels_last", cnn(device, at::MemoryFormat::ChannelsLast));
  compare("AdamW, 1,000 tensors of 64", small_tensors(device));
  const auto weights = embedding(device);
  auto param = weights.params[0].clone().requires_grad_(), torch_param = weights.params[0].clone().requires_grad_();
  mezzo::SGD sgd({{"embedding", param}}, mezzo::SGDOptions().lr(0.1));
  torch::optim::SGD torch_sgd({torch_param}, torch::optim::SGDOptions(0.1));
  const auto mezzo = time_sparse(device, weights, sgd, param);
  print_update("SGD, embedding, sparse gradient", mezzo, time_sparse(device, weights, torch_sgd, torch_param));
}

}  // namespace

int main(int argc, char** argv) {
  const auto device = device_of(argc, argv);
  print_updates(device);  // first: the Python peer adds rows to the table of AdamW steps
  const auto count = static_cast<double>(Model(device, at::kFloat).count);
  const double bandwidth = copy_bandwidth(device, static_cast<int64_t>(4 * count));
  std::printf("\n%.1f million parameters, %s, copy bandwidth %.1f GB/s (read and written), median of %d runs\n\n",
              count / 1e6,
              device.is_cpu() ? (std::to_string(at::get_num_threads()) + " threads").c_str() : device.str().c_str(),
              bandwidth / 1e9, kRuns);
  std::printf(
      "| AdamW step | ms | fastest – slowest | GB that must move | of copy bandwidth |\n|---|---|---|---|---|\n");
  // Gradient twice; weight and two moments read and written; half copy written.
  print_row("mezzo, float32 gradients", time_mezzo(device, at::kFloat), count * (4 + 4 + 24 + 2), bandwidth);
  print_row("mezzo, bfloat16 gradients", time_mezzo(device, at::kBFloat16), count * (2 + 2 + 24 + 2), bandwidth);
  print_row("LibTorch, float32 gradients", time_libtorch(device), count * (4 + 4 + 24 + 2), bandwidth);
}
