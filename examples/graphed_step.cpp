// A whole training step recorded into a graph of the device and replayed: on a GPU one launch
// a step replaces a launch for each kernel. Without graphs, as on a CPU, the same step runs
// eagerly, with the same numbers. The program prints which of the two it did.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/graph/graphed_step.h>
#include <mezzo/optim/adam.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "example.h"

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  torch::nn::Sequential model{torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1)};
  model->to(device);
  mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().lr(0.01));
  const auto inputs = torch::randn({128, 8}).to(device);
  const auto targets = 3 * inputs.sum(1, /*keepdim=*/true).sin();

  // The scale starts far too high, so that the first steps are skipped: on the device.
  mezzo::GradScaler scaler(mezzo::GradScalerOptions().init_scale(0x1p20).growth_interval(8));
  mezzo::GraphedStep step(device, [&](const std::vector<torch::Tensor>& batch) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      loss = torch::nn::functional::mse_loss(model->forward(batch[0]), batch[1]);
    }
    scaler.scale(loss).backward();
    const auto result = scaler.step(optimizer);
    scaler.update();
    return std::vector{loss, scaler.scale_tensor().clone(), result.found_inf()};
  });
  std::vector<double> losses, scales;
  double skipped = 0;
  for (int i = 0; i < 40; ++i) {
    const int64_t rows = i % 4 == 3 ? 96 : 128;  // two shapes, so two graphs
    const auto outputs = step({inputs.narrow(0, 0, rows), targets.narrow(0, 0, rows)});
    losses.push_back(outputs[0].item<double>());  // before the next call, which overwrites them
    scales.push_back(outputs[1].item<double>());
    skipped += outputs[2].item<double>();
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << "; " << skipped << " steps skipped; "
            << step.counts().replayed << " of " << losses.size() << " steps were replayed";
  if (!step.was_replayed()) {
    std::cout << ", since " << step.eager_reason();
  }
  std::cout << '\n';
  print_result("losses", losses);
  print_result("scales", scales);
}
