#include "mezzo/torch_amp.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>

namespace {

/// The lines that C++ programs write.
TEST(TorchAmpTest, TrainsByPythonsNames) {
  torch::manual_seed(0);
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);
  torch::amp::GradScaler scaler(torch::kCPU, /*init_scale=*/1024);
  const auto x = torch::randn({16, 4}), y = x.sum(1, /*keepdim=*/true);
  double first = 0, last = 0;
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      torch::amp::autocast autocast_guard("cpu", torch::kBFloat16);
      const auto output = model->forward(x);
      EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
      loss = torch::mse_loss(output.to(torch::kFloat), y);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    scaler.step(optimizer);
    scaler.update();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, 0.05 * first);
  EXPECT_EQ(scaler.get_scale(), 1024);
}

struct Trainer {
  torch::cuda::amp::GradScaler scaler_;
  std::unique_ptr<torch::amp::GradScaler> other = std::make_unique<torch::amp::GradScaler>();
};

TEST(TorchAmpTest, HasTheConstructorsOfPython) {
  const bool use_amp = false;
  EXPECT_TRUE(torch::cuda::amp::GradScaler().is_enabled());
  EXPECT_EQ(torch::cuda::amp::GradScaler(128.0, 4.0).get_growth_factor(), 4.0);
  EXPECT_FALSE(torch::cuda::amp::GradScaler(use_amp).is_enabled());
  EXPECT_FALSE(torch::amp::GradScaler(use_amp).is_enabled());
  EXPECT_EQ(torch::amp::GradScaler("cuda", 64, 2, 0.25, 7).get_growth_interval(), 7);
  const torch::amp::GradScaler off{torch::amp::GradScalerOptions{}.enabled(false)};
  EXPECT_FALSE(off.is_enabled());
  auto scaler = torch::cuda::amp::GradScaler();
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_TRUE(Trainer().scaler_.is_enabled() && Trainer().other->is_enabled());
}

TEST(TorchAmpTest, SwitchesAutocastOn) {
  const auto on = [](c10::DeviceType device) { return at::autocast::is_autocast_enabled(device); };
  {
    auto autocast_guard = torch::cuda::amp::autocast(true);
    EXPECT_TRUE(on(torch::kCUDA));
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCUDA), torch::kHalf);
    const torch::cuda::amp::autocast off(false);
    EXPECT_FALSE(on(torch::kCUDA));
  }
  {
    const torch::amp::autocast cpu(torch::kCPU);
    EXPECT_TRUE(on(torch::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
  }
  EXPECT_FALSE(on(torch::kCUDA) || on(torch::kCPU));
}

struct Square : torch::autograd::Function<Square> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& x) {
    return torch::amp::custom_fwd(
        ctx, torch::kCPU, torch::kFloat,
        [&](const torch::Tensor& input) {
          ctx->save_for_backward({input});
          return input * input;
        },
        x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return torch::cuda::amp::custom_bwd(
        ctx, torch::kCPU, [&] { return torch::autograd::variable_list{2 * ctx->get_saved_variables()[0] * grads[0]}; });
  }
};

TEST(TorchAmpTest, HasCustomFunctions) {
  const auto x = torch::full({1}, 3.0, torch::requires_grad());
  Square::apply(x).backward();
  EXPECT_EQ(x.grad().item<float>(), 6.0F);
}

}  // namespace
