// A training loop on LibTorch alone, in float32. README.md shows the lines that mezzo adds.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "example.h"

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  torch::manual_seed(0);
  torch::nn::Sequential model{torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 4)};
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  const auto inputs = torch::randn({256, 16}).to(device);
  const auto labels = inputs.narrow(1, 0, 4).argmax(1);

  std::vector<double> losses;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(model->forward(inputs), labels);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << '\n';
  print_result("losses", losses);
}
