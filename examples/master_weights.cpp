// The classic recipe: a model in float16, float32 masters in the optimizer. Updates too
// small for float16 still count.
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/amp/master_weights.h>
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
  torch::nn::Sequential model{torch::nn::Linear(16, 64), torch::nn::Tanh(), torch::nn::Linear(64, 4)};
  model->to(device);
  const auto inputs = torch::randn({256, 16}).to(device);
  const auto labels = inputs.narrow(1, 0, 4).argmax(1);

  mezzo::MasterWeights masters(*model, torch::kHalf);  // the model is float16 from here on
  mezzo::AdamW optimizer(masters.masters(), mezzo::AdamWOptions().lr(1e-3));
  mezzo::GradScaler scaler;
  std::vector<double> losses, scales;
  for (int step = 0; step < 60; ++step) {
    const auto logits = model->forward(inputs.to(torch::kHalf));  // no autocast: everything is float16
    const auto loss = torch::nn::functional::cross_entropy(logits.to(torch::kFloat), labels);
    scaler.scale(loss).backward();
    scaler.step(optimizer);  // float16 gradients, float32 update of the masters, and the new float16 weights
    scaler.update();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
    scales.push_back(scaler.get_scale());
  }
  masters.to_float32();  // to save, or to go on without
  std::cout << "loss " << losses.front() << " -> " << losses.back() << ", weights "
            << model->parameters().front().scalar_type() << '\n';
  print_result("losses", losses);
  print_result("scales", scales);
}
