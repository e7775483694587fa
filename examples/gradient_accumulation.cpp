// One step from several micro-batches: scale every loss by the same scale, unscale and update once.
// A batch that does not fit into memory is trained in parts this way.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
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
  torch::nn::Sequential model{torch::nn::Linear(16, 64), torch::nn::GELU(), torch::nn::Linear(64, 3)};
  model->to(device);
  mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().lr(5e-3));
  const auto inputs = torch::randn({256, 16}).to(device);
  const auto labels = inputs.narrow(1, 0, 3).argmax(1);
  constexpr int kMicroBatches = 4;

  mezzo::GradScaler scaler;
  std::vector<double> losses, scales;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    double sum = 0;
    for (int i = 0; i < kMicroBatches; ++i) {
      torch::Tensor loss;
      {
        mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
        const auto logits = model->forward(inputs.chunk(kMicroBatches)[i]);
        loss = torch::nn::functional::cross_entropy(logits, labels.chunk(kMicroBatches)[i]) / kMicroBatches;
      }
      scaler.scale(loss).backward();  // adds to the gradients, which stay scaled until the step
      sum += loss.item<double>();
    }
    scaler.step(optimizer);
    scaler.update();  // never between micro-batches: their gradients would have different scales
    losses.push_back(sum);
    scales.push_back(scaler.get_scale());
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << '\n';
  print_result("losses", losses);
  print_result("scales", scales);
}
