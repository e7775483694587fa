// A penalty on the gradients' norm: gradients for it are made from a scaled loss and unscaled by
// hand, and the sum of loss and penalty goes through the scaler as usual. Backward then runs
// through backward, in float16.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "example.h"

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  torch::nn::Sequential model{torch::nn::Conv1d(torch::nn::Conv1dOptions(1, 8, 3)), torch::nn::Tanh(),
                              torch::nn::Flatten(), torch::nn::Linear(8 * 14, 1)};
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.02));
  const auto inputs = torch::randn({64, 1, 16}).to(device);
  const auto targets = inputs.flatten(1).sum(1, /*keepdim=*/true).sin();

  mezzo::GradScaler scaler(mezzo::GradScalerOptions().init_scale(0x1p16).growth_interval(10));
  std::vector<double> losses, penalties, scales;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss, penalty;
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      loss = torch::nn::functional::mse_loss(model->forward(inputs), targets);
    }
    const auto scaled = torch::autograd::grad({scaler.scale(loss)}, model->parameters(), /*grad_outputs=*/{},
                                              /*retain_graph=*/true, /*create_graph=*/true);
    const double inv_scale = 1 / scaler.get_scale();
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      penalty = torch::zeros({}, device);
      for (const auto& gradient : scaled) {
        penalty = penalty + (gradient * inv_scale).square().sum();
      }
    }
    scaler.scale(loss + 0.01 * penalty).backward();
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
    penalties.push_back(penalty.item<double>());
    scales.push_back(scaler.get_scale());
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << ", penalty " << penalties.back() << '\n';
  print_result("losses", losses);
  print_result("penalties", penalties);
  print_result("scales", scales);
}
