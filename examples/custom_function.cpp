// A function with a backward of its own that is only safe in float32, and one that
// joins the op policies by name.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/custom_function.h>
#include <mezzo/amp/grad_scaler.h>
#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "example.h"

/// Squared distances of points [N, D] to centres [C, D]: sums of squares, which float16
/// would round and overflow.
struct SquaredDistance : torch::autograd::Function<SquaredDistance> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, torch::Tensor points, torch::Tensor centres) {
    return mezzo::custom_fwd(
        ctx, points.device().type(), torch::kFloat,
        [&](const torch::Tensor& p, const torch::Tensor& c) {
          ctx->save_for_backward({p, c});
          return (p.unsqueeze(1) - c).square().sum(2);
        },
        points, centres);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    return mezzo::custom_bwd(ctx, gradients[0].device().type(), [&]() -> torch::autograd::variable_list {
      const auto saved = ctx->get_saved_variables();
      const auto differences = 2 * (saved[0].unsqueeze(1) - saved[1]) * gradients[0].unsqueeze(2);  // [N, C, D]
      return {differences.sum(1), -differences.sum(0)};
    });
  }
};

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  torch::nn::Linear project(16, 8);
  auto centres = torch::randn({4, 8});
  project->to(device);
  centres = centres.to(device).requires_grad_();
  const auto inputs = 100 * torch::randn({64, 16}).to(device);  // so that distances leave float16's range
  const auto labels = inputs.narrow(1, 0, 4).argmax(1);
  torch::optim::SGD optimizer({project->weight, project->bias, centres}, torch::optim::SGDOptions(1e-2));

  // Runs in lower precision inside a region, unless the policy in force has another line for it.
  const auto activate = mezzo::autocast_function("example::activate", mezzo::CastPolicy::kLowerPrecision, device.type(),
                                                 [](const torch::Tensor& x) { return x * x.sigmoid(); });

  mezzo::GradScaler scaler;
  std::vector<double> losses, scales;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      const auto distances = SquaredDistance::apply(activate(project->forward(inputs)), centres);
      loss = torch::nn::functional::cross_entropy(-distances / 100, labels);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
    scales.push_back(scaler.get_scale());
  }
  std::cout << "loss " << losses.front() << " -> " << losses.back() << '\n';
  print_result("losses", losses);
  print_result("scales", scales);
}
