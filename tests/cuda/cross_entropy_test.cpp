#include "amp/cuda/cross_entropy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cuda/host_block.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/losses.h"
#include "mezzo/amp/op_policy.h"
#include "not_finite.h"

namespace mezzo {
namespace {

using MEZZO_CUDA::kCrossEntropyKernels;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

/// From `offset` elements behind an aligned address on.
at::Tensor at_offset(const at::Tensor& x, int64_t offset) {
  return at::cat({at::zeros({offset}, x.options()), x.flatten()}).narrow(0, offset, x.numel()).view(x.sizes());
}

struct LossAndGradient {
  at::Tensor loss, grad;
};

/// The gradient of the loss, or of each row's.
at::Tensor grad_of(const at::Tensor& loss, float grad) {
  return loss.dim() == 0 ? at::full({}, grad, loss.options())
                         : at::arange(1, loss.size(0) + 1, loss.options()).mul_(grad);
}

LossAndGradient found(const at::Tensor& logits,
                      const at::Tensor& targets,
                      float grad = 1,
                      int64_t reduction = at::Reduction::Sum) {
  const CrossEntropyOf of{logits, targets, reduction, -100};
  const auto forward = kCrossEntropyKernels.forward(of);
  return {forward.loss, kCrossEntropyKernels.backward(of, forward, grad_of(forward.loss, grad))};
}

/// What PyTorch's gives in `dtype`.
LossAndGradient expected(const at::Tensor& logits,
                         const at::Tensor& targets,
                         float grad,
                         at::ScalarType dtype,
                         int64_t reduction = at::Reduction::Sum) {
  const auto leaf = logits.to(dtype).requires_grad_();
  const auto loss = at::cross_entropy_loss(leaf, targets, {}, reduction, -100);
  loss.backward(grad_of(loss.detach(), grad));
  return {loss.detach(), leaf.grad()};
}

/// Half a unit in the last place, in which a number is stored.
double rounding(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 0x1p-24;
}

class CudaCrossEntropyTest : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(5); }
};

TEST_F(CudaCrossEntropyTest, EqualsPyTorchsInFloat64) {
  for (const int64_t rows : {0, 1, 5, 33, 300}) {
    for (const int64_t classes : {1, 2, 3, 8, 100, 129, 1030}) {
      if (rows == 300 && classes > 8) {
        continue;  // many rows are for the sum over them
      }
      for (const auto dtype : kDtypes) {
        for (const int64_t offset : {0, 1}) {
          const auto logits = at_offset((at::randn({rows, classes}) * 5).to(dtype), offset);
          auto targets = at::randint(classes, {rows}, at::kLong);
          if (rows > 3) {
            targets[2] = -100;
          }
          const auto is = found(logits, targets, 0.25f), want = expected(logits, targets, 0.25f, at::kDouble);
          ASSERT_EQ(is.loss.scalar_type(), at::kFloat);
          ASSERT_EQ(is.grad.scalar_type(), dtype);
          const auto name = testing::Message() << rows << " x " << classes << " " << dtype << " at " << offset;
          // Differences of logits, of up to 45, are rounded once, and sums of up to 300 losses a few times.
          EXPECT_NEAR(is.loss.item<double>(), want.loss.item<double>(), 64 * 0x1p-24 * (rows + 1)) << name;
          // An exponential's relative error is its exponent's absolute error: 2 roundings of up to 45. Subtracting 1
          // has the absolute error of 1. Numbers near 0 are denormal in float16.
          const double near_zero = 2 * 0x1p-24 * 0.25 + (dtype == at::kHalf ? 0x1p-25 : 0);
          EXPECT_TRUE(at::allclose(is.grad.to(at::kDouble), want.grad, rounding(dtype) + 100 * 0x1p-24, near_zero))
              << name;
        }
      }
    }
  }
}

TEST_F(CudaCrossEntropyTest, GivesAMeanOrEachRowsLoss) {
  for (const int64_t rows : {0, 1, 33, 300}) {
    const auto logits = at::randn({rows, 7}) * 5;
    auto targets = at::randint(7, {rows}, at::kLong);
    if (rows > 3) {
      targets[2] = -100;
    }
    for (const int64_t reduction : {at::Reduction::Mean, at::Reduction::None}) {
      const auto is = found(logits, targets, 0.25f, reduction),
                 want = expected(logits, targets, 0.25f, at::kDouble, reduction);
      // As above; a sum of exponentials of about 1 is rounded a few times by 2^-24, and may be what
      // keeps a gradient from 0. The largest gradient of a row's loss is a quarter of the rows.
      EXPECT_TRUE(at::allclose(is.loss.to(at::kDouble), want.loss, 64 * 0x1p-24, 64 * 0x1p-24, /*equal_nan=*/true))
          << rows << " " << reduction;
      EXPECT_TRUE(at::allclose(is.grad.to(at::kDouble), want.grad, 100 * 0x1p-24, 8 * 0x1p-24 * 0.25 * (rows + 1)))
          << rows << " " << reduction;
    }
  }
}

TEST_F(CudaCrossEntropyTest, LargeLogitsLoseNothing) {
  // As log(sum(exp(x))) of 60000 would, whose neighbours are 0.004 away.
  const auto logits = at::tensor({60000.0f, 59998.0f, 59999.0f, -60000.0f, -59998.0f, -60001.0f}).view({2, 3});
  const auto targets = at::tensor({int64_t{1}, int64_t{2}});
  const auto is = found(logits, targets), want = expected(logits, targets, 1, at::kDouble);
  EXPECT_NEAR(is.loss.item<double>(), want.loss.item<double>(), 8 * 0x1p-24 * want.loss.item<double>());
  EXPECT_TRUE(at::allclose(is.grad.to(at::kDouble), want.grad, 8 * 0x1p-24, 2 * 0x1p-24));
  for (const int64_t largest : {0, 150, 1029}) {  // of any warp
    auto wide = at::randn({1, 1030});
    wide[0][largest] = 60000;
    EXPECT_EQ(found(wide, at::full({1}, largest, at::kLong)).loss.item<float>(), 0);
  }
}

TEST_F(CudaCrossEntropyTest, InfinityAndNaNGoWhereTheyDoInPyTorch) {
  for (const int64_t classes : {3, 200}) {
    for (const auto dtype : kDtypes) {
      auto logits = at::randn({6, classes}).to(dtype);
      logits[0][1] = kNaN;
      logits[1][2] = kInf;
      logits[2][0] = -kInf;  // its probability is 0
      logits[3].fill_(-kInf);
      logits[4][classes - 1] = kNaN;  // ignored
      const auto targets = at::tensor({0, 1, 2, 0, -100, 1}, at::kLong);
      for (int64_t row = 0; row < logits.size(0); ++row) {
        const auto x = logits.narrow(0, row, 1), target = targets.narrow(0, row, 1);
        const auto is = found(x, target), want = expected(x, target, 1, at::kFloat);
        EXPECT_TRUE(at::allclose(is.loss, want.loss, 1e-5, 1e-6, /*equal_nan=*/true)) << classes << " " << row;
        EXPECT_TRUE(at::equal(is.grad.isnan(), want.grad.isnan())) << classes << " " << row << is.grad << want.grad;
      }
      EXPECT_TRUE(found(logits, targets).loss.isnan().item<bool>());
    }
  }
  const auto impossible = at::tensor({-kInf, 0.0f}).view({1, 2});
  EXPECT_EQ(found(impossible, at::tensor({int64_t{0}})).loss.item<float>(), kInf);
}

TEST_F(CudaCrossEntropyTest, RowsThatAreIgnoredCountNothing) {
  const auto logits = at::randn({4, 5});
  const auto is = found(logits, at::full({4}, -100, at::kLong));
  EXPECT_EQ(is.loss.item<float>(), 0);
  EXPECT_TRUE(at::equal(is.grad, at::zeros_like(logits)));
  EXPECT_TRUE(found(logits, at::full({4}, -100, at::kLong), 1, at::Reduction::Mean).loss.isnan().item<bool>());
  EXPECT_TRUE(at::equal(found(logits, at::full({4}, -100, at::kLong), 1, at::Reduction::Mean).grad, is.grad));
  const auto forward =
      kCrossEntropyKernels.forward({logits, at::full({4}, 3, at::kLong), at::Reduction::Sum, /*ignore_index=*/3});
  EXPECT_EQ(forward.loss.item<float>(), 0);
}

TEST_F(CudaCrossEntropyTest, ATargetThatIsNoClassIsAnErrorAndReadsNothing) {
  const auto logits = at::randn({2, 5});
  for (const int64_t target : {int64_t{5}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THROW(found(logits, at::tensor({int64_t{0}, target})), std::out_of_range) << target;
  }
  EXPECT_THROW(found(logits.narrow(1, 0, 0).contiguous(), at::tensor({int64_t{0}, int64_t{0}})), std::out_of_range);
}

TEST_F(CudaCrossEntropyTest, GradientsOfOneHundredMillionthSurviveTheScale) {
  // Of a target whose probability is nearly 0, and of classes that are nearly impossible.
  const auto logits = at::tensor({0.0f, -18.5f, -19.0f}).view({1, 3}), targets = at::tensor({int64_t{1}});
  const auto is = found(logits.to(at::kHalf), targets, 65536.0f / 8), want = expected(logits, targets, 1, at::kDouble);
  EXPECT_GT(is.grad[0][2].item<float>(), 0);  // 6e-9, 5e-5 at this scale
  EXPECT_TRUE(at::allclose(is.grad.to(at::kDouble), want.grad * 8192, 0x1p-11 + 40 * 0x1p-24, 0x1p-25));
}

TEST_F(CudaCrossEntropyTest, TheSameInputsGiveTheSameBits) {
  const auto logits = at::randn({300, 150}), targets = at::randint(150, {300}, at::kLong);
  const auto first = found(logits, targets), second = found(logits, targets);
  EXPECT_TRUE(at::equal(first.loss, second.loss));
  EXPECT_TRUE(at::equal(first.grad, second.grad));
}

/// While it lives, losses on the CPU are computed by the kernels for GPUs.
struct WithGpuKernels {
  WithGpuKernels() { set_cross_entropy_kernels(at::kCPU, &kCrossEntropyKernels); }
  ~WithGpuKernels() { set_cross_entropy_kernels(at::kCPU, nullptr); }
};

using Options = torch::nn::functional::CrossEntropyFuncOptions;

int64_t launches_of(const std::function<void()>& run) {
  const int64_t before = kernels::MEZZO_CUDA::num_launches();
  run();
  return kernels::MEZZO_CUDA::num_launches() - before;
}

TEST_F(CudaCrossEntropyTest, IsWhatMezzosLossesTakeAndIsDifferentiableTwice) {
  const auto logits = at::randn({6, 4}).requires_grad_(), targets = at::tensor({0, 3, -100, 1, 2, 3}, at::kLong);
  for (const Options& options : {Options(), Options().reduction(torch::kSum), Options().reduction(torch::kNone)}) {
    const auto derivatives = [&] {
      const auto loss = cross_entropy(logits, targets, options).square().sum();
      const auto first = torch::autograd::grad({loss}, {logits}, {}, /*retain_graph=*/true)[0];
      const auto with_graph = torch::autograd::grad({loss}, {logits}, {}, {}, /*create_graph=*/true)[0];
      return std::vector<at::Tensor>{loss.detach(), first, with_graph.detach(),
                                     torch::autograd::grad({with_graph.square().sum()}, {logits})[0]};
    };
    const auto want = derivatives();
    const WithGpuKernels gpu;
    std::vector<at::Tensor> is;
    EXPECT_GE(launches_of([&] { is = derivatives(); }), 2);
    for (size_t i = 0; i < want.size(); ++i) {
      // Losses of about 10, squared, of a few roundings.
      EXPECT_TRUE(at::allclose(is[i], want[i], 1e-5, 1e-5)) << i << is[i] << want[i];
    }
  }
}

TEST_F(CudaCrossEntropyTest, LeavesOtherArgumentsToLibTorch) {
  const WithGpuKernels gpu;
  const auto logits = at::randn({6, 4}), targets = at::tensor({0, 3, 2, 1, 2, 3}, at::kLong);
  const auto is_left = [&](const at::Tensor& x, const at::Tensor& target, const Options& options = {}) {
    return launches_of([&] { cross_entropy(x, target, options); }) == 0;
  };
  EXPECT_FALSE(is_left(logits, targets));
  EXPECT_FALSE(is_left(logits.t().contiguous().t(), targets)) << "columns that lie apart";
  EXPECT_TRUE(is_left(logits.to(at::kDouble), targets));
  EXPECT_TRUE(is_left(logits, at::rand({6, 4}))) << "probabilities";
  EXPECT_TRUE(is_left(logits, targets, Options().weight(at::ones({4}))));
  EXPECT_TRUE(is_left(logits, targets, Options().label_smoothing(0.1)));
  EXPECT_TRUE(is_left(at::randn({2, 4, 3}), targets.view({2, 3})));
  EXPECT_TRUE(is_left(logits[0], targets[0]));
  EXPECT_THROW(cross_entropy(logits, targets.narrow(0, 0, 3)), c10::Error);
}

/// A policy and a tracer see LibTorch's single operations.
TEST_F(CudaCrossEntropyTest, IsMadeOfOperationsUnderAPolicyOrATracer) {
  const WithGpuKernels gpu;
  const auto logits = at::randn({6, 4}), targets = at::tensor({0, 3, 2, 1, 2, 3}, at::kLong);
  const auto launches = [&] {
    return launches_of([&] { cross_entropy_of_labels(logits, targets, at::Reduction::Sum); });
  };
  {
    FiniteTracer tracer;
    EXPECT_EQ(launches(), 0);
  }
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16, AutocastOptions().policy(OpPolicy::built_in(at::kCPU)));
    EXPECT_EQ(launches(), 0);
  }
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    EXPECT_EQ(launches(), 2);
  }
}

}  // namespace
}  // namespace mezzo
