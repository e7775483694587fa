// Clipping gradients: unscale first, so that the true gradients are measured. The scale here starts
// far too high and grows fast, so that some steps overflow, are skipped, and lower it.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/optim/clip_grad.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "example.h"

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  torch::nn::Sequential model{torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1)};
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto inputs = torch::randn({128, 8}).to(device);
  const auto targets = 3 * inputs.sum(1, /*keepdim=*/true).sin();

  mezzo::GradScaler scaler(mezzo::GradScalerOptions().init_scale(0x1p22).growth_interval(8));
  std::vector<double> losses, norms, scales;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      loss = torch::nn::functional::mse_loss(model->forward(inputs), targets);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);  // once, after the last backward
    const auto norm = mezzo::clip_grad_norm_(model->parameters(), /*max_norm=*/0.5);
    const bool stepped = scaler.step(optimizer).stepped();
    scaler.update();
    if (stepped) {
      norms.push_back(norm.item<double>());
    }
    losses.push_back(loss.item<double>());
    scales.push_back(scaler.get_scale());
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << "; " << losses.size() - norms.size()
            << " steps skipped\n";
  print_result("losses", losses);
  print_result("norms", norms);
  print_result("scales", scales);
}
