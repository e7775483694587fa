// One process, several devices: DataParallel gives each device a replica of the module and its part of the batch. On
// CUDA it takes all devices; here, on the CPU, two replicas share it.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/parallel/data_parallel.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "example.h"

/// `Cloneable` and `reset` let DataParallel make replicas.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(16, 64));
    out = register_module("out", torch::nn::Linear(64, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(hidden(x))); }

  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  Net net;
  net->to(device);
  auto options = mezzo::DataParallelOptions();
  if (device.is_cpu()) options.devices({device, device});
  mezzo::DataParallel model(net, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  const auto inputs = torch::randn({256, 16}).to(device);
  const auto labels = inputs.narrow(1, 0, 4).argmax(1);

  mezzo::GradScaler scaler;
  std::vector<double> losses, scales;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device, torch::kHalf);  // holds in the replicas' threads
      loss = torch::nn::functional::cross_entropy(model(inputs), labels);
    }
    scaler.scale(loss).backward();  // leaves the sum of the replicas' gradients in net
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
    scales.push_back(scaler.get_scale());
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << '\n';
  print_result("losses", losses);
  print_result("scales", scales);
}
