// An op list of one's own, and a log of what it casts: layer norms in float32 on a CPU,
// where PyTorch leaves them low.
#include <ATen/ops/layer_norm.h>
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cast_log.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/module_scope.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "example.h"

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(torch::Tensor x) {
    {
      const mezzo::ModuleScope scope("first");  // so that the log can say where
      x = at::layer_norm(first(x), {32}).tanh();
    }
    const mezzo::ModuleScope scope("second");
    return second(x);
  }
  torch::nn::Linear first{16, 32}, second{32, 4};
};
TORCH_MODULE(Model);

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  Model model;
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  const auto inputs = torch::randn({64, 16}).to(device);
  const auto labels = inputs.narrow(1, 0, 4).argmax(1);

  auto policy = mezzo::OpPolicy::preset("cpu");
  policy.set("layer_norm", mezzo::CastPolicy::kFloat32).set("tanh", mezzo::CastPolicy::kLowerPrecision);
  mezzo::CastLog log;
  std::vector<double> losses;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kBFloat16,
                                    mezzo::AutocastOptions().policy(policy).log(step == 0 ? &log : nullptr));
      loss = torch::nn::functional::cross_entropy(model->forward(inputs), labels);
    }
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  std::cout << "casts of one step:\n" << log.to_table();
  double bytes = 0;
  for (const auto& entry : log.entries()) {
    bytes += static_cast<double>(entry.bytes);
  }
  print_result("losses", losses);
  print_result("bytes", {bytes});
}
