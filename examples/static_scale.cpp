// A scale that you choose. The targets here are so small that float16 gradients of the
// unscaled loss vanish: without a scale nothing is learnt. With a static one, or one set by
// hand at every step, it is.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "example.h"

struct Curve {
  std::vector<double> losses, scales;
};

Curve train(torch::Device device, mezzo::GradScaler& scaler, bool by_hand) {
  torch::manual_seed(0);
  torch::nn::Linear model(8, 1);
  for (auto& parameter : model->parameters()) {
    parameter.data().zero_();
  }
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.2));
  const auto inputs = torch::randn({1024, 8}).to(device);
  const auto targets = 1e-6 * inputs.sum(1, /*keepdim=*/true);

  Curve curve;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      loss = torch::nn::functional::mse_loss(model->forward(inputs), targets);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    if (by_hand) {
      scaler.update(0x1p19 * (1 + step / 10));  // ends the iteration with this scale
    } else {
      scaler.update();
    }
    curve.losses.push_back(loss.item<double>());
    curve.scales.push_back(scaler.get_scale());
  }
  return curve;
}

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  mezzo::GradScaler none(mezzo::GradScalerOptions().enabled(false));
  mezzo::GradScaler constant(mezzo::GradScalerOptions().init_scale(0x1p20).static_scale(true));
  mezzo::GradScaler manual(mezzo::GradScalerOptions().init_scale(0x1p19));
  const auto unscaled = train(device, none, /*by_hand=*/false);
  const auto static_scale = train(device, constant, /*by_hand=*/false);
  const auto by_hand = train(device, manual, /*by_hand=*/true);
  std::cout << "loss " << unscaled.losses.front() << " -> " << unscaled.losses.back() << " without a scale, "
            << static_scale.losses.back() << " with a static one, " << by_hand.losses.back()
            << " with one set by hand\n";
  print_result("unscaled_losses", unscaled.losses);
  print_result("static_losses", static_scale.losses);
  print_result("static_scales", static_scale.scales);
  print_result("manual_losses", by_hand.losses);
  print_result("manual_scales", by_hand.scales);
}
