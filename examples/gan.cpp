// Two models, two losses, two optimizers, one scaler: a GAN that learns a skewed normal
// distribution of points in the plane. Each loss goes through scale, each optimizer through step;
// update comes once, at the end of the iteration.
#include <mezzo/amp/autocast_guard.h>
#include <mezzo/amp/cpu_half_compute.h>
#include <mezzo/amp/grad_scaler.h>
#include <mezzo/optim/adam.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "example.h"

namespace nn = torch::nn;

torch::Tensor real_points(int64_t count) {
  return torch::randn({count, 2}).mm(torch::tensor({{1.0F, 0.5F}, {0.0F, 0.5F}})) + torch::tensor({2.0F, -1.0F});
}

torch::Tensor loss_of(const torch::Tensor& logits, double wanted) {
  return nn::functional::binary_cross_entropy_with_logits(logits, torch::full_like(logits, wanted));
}

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  const mezzo::CpuHalfCompute fast_half;
  torch::manual_seed(0);
  nn::Sequential generator{nn::Linear(4, 32), nn::ReLU(), nn::Linear(32, 2)};
  nn::Sequential critic{nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 1)};
  generator->to(device);
  critic->to(device);
  const auto adam = mezzo::AdamOptions().lr(2e-3).betas({0.5, 0.99});
  mezzo::Adam generator_optimizer(*generator, adam);
  mezzo::Adam critic_optimizer(*critic, adam);

  mezzo::GradScaler scaler(mezzo::GradScalerOptions().growth_interval(100));
  std::vector<double> critic_losses, generator_losses, scales;
  for (int step = 0; step < 1000; ++step) {
    const auto real = real_points(128).to(device), noise = torch::randn({128, 4}).to(device);

    critic_optimizer.zero_grad();
    torch::Tensor critic_loss, generator_loss, fake;
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      fake = generator->forward(noise);
      critic_loss = loss_of(critic->forward(real), 1) + loss_of(critic->forward(fake.detach()), 0);
    }
    scaler.scale(critic_loss).backward();
    scaler.step(critic_optimizer);

    generator_optimizer.zero_grad();
    {
      mezzo::AutocastGuard autocast(device.type(), torch::kHalf);
      generator_loss = loss_of(critic->forward(fake), 1);
    }
    scaler.scale(generator_loss).backward();
    scaler.step(generator_optimizer);
    scaler.update();

    critic_losses.push_back(critic_loss.item<double>());
    generator_losses.push_back(generator_loss.item<double>());
    scales.push_back(scaler.get_scale());
  }

  const torch::NoGradGuard no_grad;
  const auto points = generator->forward(torch::randn({10000, 4}).to(device)).cpu(), real = real_points(10000);
  std::cout << "mean of real points, of generated ones:\n" << real.mean(0) << points.mean(0);
  std::cout << "\ntheir covariances:\n" << real.t().cov() << points.t().cov() << '\n';
  const auto moments = torch::cat({points.mean(0), points.t().cov().flatten()}).to(torch::kDouble).contiguous();
  print_result("critic_losses", critic_losses);
  print_result("generator_losses", generator_losses);
  print_result("scales", scales);
  print_result("moments", {moments.data_ptr<double>(), moments.data_ptr<double>() + moments.numel()});
}
