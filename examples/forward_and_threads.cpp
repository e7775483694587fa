// Autocast belongs to a thread, so a region opened in one says nothing to another. Two cures: open
// it inside the model's forward, which then works wherever it is called; or wrap what a worker
// runs in mezzo::autocast().
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <future>

#include "example.h"

struct NetImpl : torch::nn::Module {
  NetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(8, 32))),
        out(register_module("out", torch::nn::Linear(32, 1))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    // Without the cache of cast weights: all threads share it, and the first to leave its
    // region clears it, so whether two threads add their gradients in float16 or in float32
    // would be a matter of timing.
    mezzo::AutocastGuard autocast(x.device().type(), torch::kHalf, /*enabled=*/true, /*cache_enabled=*/false);
    return out(torch::tanh(hidden(x)));
  }

  torch::nn::Linear hidden, out;
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  Net model;
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  const auto inputs = torch::randn({128, 8}).to(device);
  const auto targets = inputs.sum(1, /*keepdim=*/true).sin();

  const auto in_half = [](auto& make) { return double(make().scalar_type() == torch::kHalf); };
  std::vector<double> halves;
  {
    mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
    const auto product = [&] { return model->hidden(inputs); };
    halves.push_back(in_half(product));                                                        // 1: this thread
    halves.push_back(std::async(std::launch::async, [&] { return in_half(product); }).get());  // 0: another one
    auto wrapped = mezzo::autocast(device.type(), torch::kHalf, product);
    halves.push_back(std::async(std::launch::async, [&] { return in_half(wrapped); }).get());  // 1
  }

  mezzo::GradScaler scaler;
  std::vector<double> losses;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    std::vector<std::future<torch::Tensor>> halves_of_batch;
    for (int i = 0; i < 2; ++i) {  // forward opens the region on the worker's own thread
      halves_of_batch.push_back(std::async(std::launch::async, [&, i] {
        const auto output = model(inputs.chunk(2)[i]);
        return torch::nn::functional::mse_loss(output.to(torch::kFloat), targets.chunk(2)[i]);
      }));
    }
    const auto loss = (halves_of_batch[0].get() + halves_of_batch[1].get()) / 2;
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
  }
  std::cout << "half on this thread: " << halves[0] << ", on another: " << halves[1] << ", wrapped: " << halves[2]
            << "\nloss " << losses.front() << " -> " << losses.back() << '\n';
  print_result("halves", halves);
  print_result("losses", losses);
}
