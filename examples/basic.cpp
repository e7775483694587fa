// Mixed precision in five lines: autocast around the forward pass, a GradScaler
// around backward and step.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "example.h"

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;  // on a CPU, float16 at the speed of float32
  torch::manual_seed(0);
  torch::nn::Sequential model{torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 4)};
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const auto inputs = torch::randn({256, 16}).to(device);
  const auto labels = inputs.narrow(1, 0, 4).argmax(1);  // which of the first four numbers is the largest

  mezzo::GradScaler scaler;
  std::vector<double> losses, scales;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      loss = torch::nn::functional::cross_entropy(model->forward(inputs), labels);
    }  // backward runs outside: each op's gradient has the dtype its forward had
    scaler.scale(loss).backward();
    scaler.step(optimizer);  // skipped if a gradient is inf or NaN
    scaler.update();
    losses.push_back(loss.item<double>());
    scales.push_back(scaler.get_scale());
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << ", scale " << scales.back() << '\n';
  print_result("losses", losses);
  print_result("scales", scales);
}
