// Activation checkpointing: autograd keeps only the inputs of each block, and backward computes the block again. The
// losses equal those of a run without checkpoints, because the second call draws the same dropout.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/checkpoint.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/optim/adam.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "example.h"

namespace nn = torch::nn;

struct NetImpl : nn::Module {
  explicit NetImpl(bool uses_checkpoints) : uses_checkpoints_(uses_checkpoints) {
    for (int i = 0; i < 4; ++i) {
      nn::Sequential block{nn::Linear(32, 128), nn::GELU(), nn::Dropout(0.1), nn::Linear(128, 32)};
      blocks.push_back(register_module("block" + std::to_string(i), block));
    }
    head = register_module("head", nn::Linear(32, 4));
  }

  torch::Tensor forward(torch::Tensor x) {
    for (const auto& block : blocks) {
      const auto run = [block = block.ptr()](const torch::Tensor& input) { return input + block->forward(input); };
      x = uses_checkpoints_ ? mezzo::checkpoint(run, x) : run(x);  // a checkpoint keeps x, and runs again in backward
    }
    return head(x);
  }

  bool uses_checkpoints_;
  std::vector<nn::Sequential> blocks;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

struct Curves {
  std::vector<double> losses, scales;
};

Curves train(bool uses_checkpoints, torch::Device device) {
  torch::manual_seed(0);
  Net model(uses_checkpoints);
  model->to(device);
  mezzo::AdamW optimizer(*model, mezzo::AdamWOptions().lr(2e-3));
  const auto inputs = torch::randn({256, 32}).to(device);
  const auto labels = inputs.narrow(1, 0, 4).argmax(1);

  mezzo::GradScaler scaler;
  Curves curves;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      loss = nn::functional::cross_entropy(model->forward(inputs), labels);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    curves.losses.push_back(loss.item<double>());
    curves.scales.push_back(scaler.get_scale());
  }
  return curves;
}

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  const Curves curves = train(/*uses_checkpoints=*/true, device), plain = train(/*uses_checkpoints=*/false, device);
  std::cout << "loss " << curves.losses.front() << " -> " << curves.losses.back() << ", without checkpoints "
            << plain.losses.back() << '\n';
  print_result("losses", curves.losses);
  print_result("scales", curves.scales);
  print_result("plain_losses", plain.losses);
}
