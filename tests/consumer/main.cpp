// The five lines of AMP, as README shows them, in a project that knows
// mezzo from its package alone.
#include <mezzo/mezzo.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <iostream>

int main() {
  torch::manual_seed(0);
  const mezzo::CpuHalfCompute fast_half_compute;
  torch::nn::Linear model(16, 4);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const auto input = torch::randn({64, 16});
  const auto target = torch::randint(4, {64});
  double first = 0, last = 0;

  mezzo::GradScaler scaler;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(torch::kCPU, torch::kHalf);
      loss = torch::nn::functional::cross_entropy(model(input), target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    (step == 0 ? first : last) = loss.item<double>();
  }
  std::cout << "loss " << first << " -> " << last << ", scale " << scaler.get_scale() << '\n';
  return last < 0.8 * first ? 0 : 1;
}
