#include "mezzo/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "kernels/optimizer_kernels.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/sgd.h"

namespace mezzo {
namespace {

/// Sizes around the ends of vectors, blocks and chunks.
kernels::ParameterUpdates updates_of(at::ScalarType dtype, at::ScalarType gradient_dtype, size_t slots) {
  kernels::ParameterUpdates updates;
  for (const int64_t size : {0, 1, 7, 31, 1023, 1025, 65'537}) {
    const auto values = at::randn({size});
    updates.push_back({.param = values.to(dtype),
                       .gradient = at::randn({size}).to(gradient_dtype),
                       .shadow = dtype == at::kFloat ? values.to(at::kHalf) : at::Tensor(),
                       .step = at::ones({}),
                       .slots = std::vector<at::Tensor>(),
                       .lr = 0.01,
                       .weight_decay = 0.1,
                       .index = static_cast<uint32_t>(updates.size()),
                       .rounding_seed = dtype == at::kBFloat16 ? std::optional<uint64_t>(3) : std::nullopt});
    for (size_t slot = 0; slot < slots; ++slot) {
      updates.back().slots.push_back(at::rand({size}));
    }
  }
  return updates;
}

kernels::ParameterUpdates clone(kernels::ParameterUpdates updates) {
  for (ParameterUpdate& update : updates) {
    update.param = update.param.clone();
    update.step = update.step.clone();
    update.shadow = update.shadow.defined() ? update.shadow.clone() : at::Tensor();
    for (at::Tensor& slot : update.slots) {
      slot = slot.clone();
    }
  }
  return updates;
}

template <class Kernel>
void expect_same(size_t slots, Kernel kernel, Kernel reference) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto gradient_dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      const auto mine = updates_of(dtype, gradient_dtype, slots), theirs = clone(mine);
      kernel(mine);
      reference(theirs);
      const double tolerance = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;  // an ulp near 1
      for (size_t i = 0; i < mine.size(); ++i) {
        EXPECT_TRUE(at::allclose(mine[i].param.to(at::kFloat), theirs[i].param.to(at::kFloat), tolerance, 1e-5))
            << dtype << " with gradients of " << gradient_dtype << ", " << mine[i].param.numel() << " elements";
      }
    }
  }
}

TEST(OptimizerKernelsTest, AgreeWithTheirReferenceForSizesAroundVectorsBlocksAndChunks) {
  const GradientFactors factors{at::full({}, 0.5), at::full({}, 0.7), {}};
  using Updates = const kernels::ParameterUpdates&;
  using Run = std::function<void(Updates)>;
  const kernels::AdamSettings adam{0.9, 0.999, 1e-8, true};
  const kernels::SgdSettings sgd{0.9, true};
  const kernels::LambSettings lamb{0.9, 0.999, 1e-6};
  expect_same<Run>(
      2, [&](Updates u) { kernels::adam(u, adam, factors); },
      [&](Updates u) { kernels::reference::adam(u, adam, factors); });
  expect_same<Run>(
      1, [&](Updates u) { kernels::sgd(u, sgd, factors); },
      [&](Updates u) { kernels::reference::sgd(u, sgd, factors); });
  expect_same<Run>(
      2, [&](Updates u) { kernels::lamb(u, lamb, factors); },
      [&](Updates u) { kernels::reference::lamb(u, lamb, factors); });
}

TEST(OptimizerTest, TellsAutogradThatItChangedParametersAndShadows) {
  auto weight = at::ones({3}).requires_grad_();
  auto shadow = at::ones({3}, at::kHalf);
  SGD sgd({{{{"weight", weight, shadow}}}}, SGDOptions().lr(0.5));
  weight.mutable_grad() = at::ones({3});
  const auto version = weight._version(), shadow_version = shadow._version();
  sgd.step();
  EXPECT_GT(weight._version(), version);
  EXPECT_GT(shadow._version(), shadow_version);
  EXPECT_TRUE(at::equal(shadow, at::full({3}, 0.5, at::kHalf)));
}

TEST(OptimizerTest, TakesGradientsAndParametersOfAnyStrides) {
  const auto gradient = at::randn({4, 6});
  auto plain = at::ones({4, 6}).requires_grad_(), strided = at::ones({6, 4}).t().requires_grad_();
  AdamW adamw({{{{"plain", plain}, {"strided", strided}}}}, AdamOptions().lr(0.1));
  plain.mutable_grad() = gradient.t().contiguous().t();
  strided.mutable_grad() = gradient;
  adamw.step();
  EXPECT_TRUE(at::allclose(plain, strided, 1e-6, 1e-7));
  EXPECT_FALSE(at::allclose(plain, at::ones({4, 6})));
}

TEST(OptimizerTest, StepsOnTheDeviceWithoutAWriteToItsGradients) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no CUDA device in this process";
  }
  auto weight = at::ones({5}, at::kCUDA).requires_grad_(), host = at::ones({5}).requires_grad_();
  AdamW adamw({{{{"weight", weight}, {"host", host}}}}, AdamOptions().lr(0.1).max_grad_norm(1));
  GradScaler scaler(GradScalerOptions().init_scale(8));
  scaler.scale(at::ones({}, at::kCUDA));
  weight.mutable_grad() = at::full({5}, 8.0, at::kCUDA);
  host.mutable_grad() = at::full({5}, 8.0);
  EXPECT_TRUE(scaler.step(adamw).stepped());
  EXPECT_TRUE(at::allclose(weight.cpu(), host));
  EXPECT_EQ(weight.grad()[0].item<float>(), 8);
  EXPECT_NEAR(adamw.grad_norm().item<double>(), std::sqrt(10.0), 1e-6);
}

}  // namespace
}  // namespace mezzo
