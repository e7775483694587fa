#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/host_block.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/operators.h"
#include "not_finite.h"

namespace mezzo::kernels {
namespace {

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

/// Gradients of all sizes and kinds, some of 1e-8 times 65536; some
/// begin an element behind an aligned place, some are transposed, some empty.
std::vector<at::Tensor> some_gradients() {
  at::manual_seed(3);
  std::vector<at::Tensor> gradients;
  const std::vector<int64_t> sizes = {1, 2, 3, 5, 31, 8191, 8193, 0, 257};
  for (int64_t i = 0; i < 90; ++i) {
    const int64_t size = sizes[i % 9];
    const double factor = i % 2 == 0 ? 1e-8 * 65536 : 1;
    auto gradient = (at::randn({size}) * factor).to(kDtypes[i % 3]);
    if (i % 5 == 4) {
      gradient = at::cat({at::zeros({1}, gradient.options()), gradient}).narrow(0, 1, size);
    } else if (i % 7 == 6) {
      gradient = (at::randn({size, 4}) * factor).to(kDtypes[i % 3]).t();
    }
    gradients.push_back(gradient);
  }
  gradients.push_back(at::randn({9, 4}).slice(1, 0, 4, 2));  // left to the specification
  gradients.push_back(at::randn({7}, at::kDouble));
  return gradients;
}

std::vector<at::Tensor> copy_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.clone());
  }
  return copies;
}

ScaleOfGradients scale_of(float value, bool reproduce_pytorch = false) {
  return {at::full({}, value), /*may_be_below_one=*/value < 1, reproduce_pytorch};
}

/// NaN equals NaN.
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() &&
         at::allclose(a.to(at::kDouble), b.to(at::kDouble), 0, 0, /*equal_nan=*/true);
}

TEST(CudaScalingTest, UnscalesAsTheSpecificationDoesToTheBit) {
  for (const float scale : {65536.0F, 3.0F, 1.0F, 0.25F}) {
    const auto all = some_gradients();
    GradientsToUnscale a;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].element_size() == 2 && i % 2 == 0) {
        a.halves.push_back(all[i]);
        a.into.push_back(at::empty_like(all[i], at::kFloat).fill_(7));
      } else {
        a.in_place.push_back(all[i]);
      }
    }
    const GradientsToUnscale b{copy_of(a.in_place), a.halves, copy_of(a.into)};
    const auto halves = copy_of(a.halves);
    const int64_t version = a.in_place[0]._version();
    EXPECT_EQ(MEZZO_CUDA::check_gradients({a.in_place, a.halves}, scale_of(scale)).item<float>(), 0);
    EXPECT_EQ(a.in_place[0]._version(), version) << "a check changes nothing";
    EXPECT_TRUE(same(a.in_place[0], b.in_place[0]));
    EXPECT_EQ(MEZZO_CUDA::unscale_gradients(a, scale_of(scale)).item<float>(), 0);
    EXPECT_GT(a.in_place[0]._version(), version);
    EXPECT_EQ(reference::unscale_gradients(b, scale_of(scale)).item<float>(), 0);
    for (size_t i = 0; i < a.in_place.size(); ++i) {
      EXPECT_TRUE(same(a.in_place[i], b.in_place[i])) << i << " at scale " << scale;
    }
    for (size_t i = 0; i < a.into.size(); ++i) {
      EXPECT_TRUE(same(a.into[i], b.into[i])) << i << " at scale " << scale;
      EXPECT_TRUE(same(a.halves[i], halves[i])) << i;
    }
  }
}

/// In one element of any tensor.
TEST(CudaScalingTest, FindsInfAndNaNWhereverTheyAre) {
  float bad = kInf;
  for (const size_t tensor : {0, 5, 6, 78, 80, 89, 90, 91}) {
    auto gradients = some_gradients();
    auto last = gradients[tensor];
    while (last.dim() > 0) {
      last = last[-1];
    }
    last.fill_(bad);
    bad = std::isnan(bad) ? kInf : bad > 0 ? -kInf : kNaN;
    EXPECT_EQ(MEZZO_CUDA::check_gradients({gradients, {}}, scale_of(65536)).item<float>(), 1) << tensor;
    EXPECT_EQ(MEZZO_CUDA::unscale_gradients({gradients, {}, {}}, scale_of(65536, true)).item<float>(), 1) << tensor;
  }
}

TEST(CudaScalingTest, TakesGradientsOfSeveralLists) {
  std::vector<at::Tensor> gradients;
  for (int i = 0; i <= MEZZO_CUDA::UnscaledList::kMost; ++i) {
    gradients.push_back(at::ones({1}));
  }
  EXPECT_EQ(MEZZO_CUDA::unscale_gradients({gradients, {}, {}}, scale_of(2)).item<float>(), 0);
  for (const at::Tensor& gradient : gradients) {
    EXPECT_EQ(gradient.item<float>(), 0.5);
  }
  gradients.back().fill_(kInf);
  EXPECT_EQ(MEZZO_CUDA::check_gradients({gradients, {}}, scale_of(2)).item<float>(), 1);
}

/// As the specification, which tests/scaling compares with what PyTorch's own check makes of
/// gradients that were unscaled.
TEST(CudaScalingTest, JudgesWhatUnscalingComesTo) {
  for (const auto dtype : kDtypes) {
    for (const float scale : {0.25F, 1.0F, 4.0F, 1e-40F, kInf, kNaN}) {
      for (const float value : {0.0F, 1.0F, 50000.0F, 2e38F}) {
        for (const bool reproduce_pytorch : {false, true}) {
          const auto gradient = at::tensor({0.0F, value, -1.0F}).to(dtype);
          const ScaleOfGradients of{at::full({}, scale), true, reproduce_pytorch};
          SCOPED_TRACE(testing::Message() << dtype << " " << value << " at scale " << scale);
          for (const GradientsToCheck& gradients :
               {GradientsToCheck{{gradient}, {}}, GradientsToCheck{{}, {gradient}}}) {
            EXPECT_EQ(MEZZO_CUDA::check_gradients(gradients, of).item<float>(),
                      reference::check_gradients(gradients, of).item<float>());
          }
          const GradientsToUnscale a{{gradient.clone()}, {}, {}}, b{{gradient.clone()}, {}, {}};
          EXPECT_EQ(MEZZO_CUDA::unscale_gradients(a, of).item<float>(),
                    reference::unscale_gradients(b, of).item<float>());
          EXPECT_TRUE(same(a.in_place[0], b.in_place[0]));
        }
      }
    }
  }
}

TEST(CudaScalingTest, TakesGradientsWithoutElements) {
  const auto empty = at::empty({0});
  EXPECT_EQ(MEZZO_CUDA::check_gradients({{empty}, {}}, scale_of(2)).item<float>(), 0);
  EXPECT_EQ(MEZZO_CUDA::unscale_gradients({{empty}, {}, {}}, scale_of(kInf)).item<float>(), 1) << "the scale is lost";
}

TEST(CudaScalingTest, LaunchesOnceAListAndOnceForFoundInf) {
  std::vector<at::Tensor> gradients;
  for (int i = 0; i < 70; ++i) {
    gradients.push_back(at::ones({3}, kDtypes[static_cast<size_t>(i) % 3]));
  }
  const int64_t before = MEZZO_CUDA::num_launches();
  MEZZO_CUDA::unscale_gradients({gradients, {}, {}}, scale_of(2));
  EXPECT_EQ(MEZZO_CUDA::num_launches() - before, 2) << "all dtypes together";
}

LossScaleTensors numbers(float scale) {
  auto counts = at::zeros({kNumLossScaleCounts}, at::kInt);
  counts[kHysteresisTracker] = 2;
  return {at::full({}, scale), counts};
}

/// Against LibTorch's _amp_update_scale_ and the operations around it, over iterations at random.
TEST(CudaScalingTest, UpdatesTheLossScaleAsTheSpecificationDoes) {
  for (const int64_t hysteresis : {1, 2, 3}) {
    for (const bool is_static : {false, true}) {
      for (const bool reproduce_pytorch : {false, true}) {
        for (const double overflows : {0.1, 0.6}) {
          const LossScaleRules rules{.init_scale = 8,
                                     .growth_factor = 1.7,
                                     .backoff_factor = 0.3,
                                     .growth_interval = 2,
                                     .min_scale = 1e-3,
                                     .max_scale = 1e4,
                                     .hysteresis = reproduce_pytorch ? 1 : hysteresis,
                                     .is_static = is_static,
                                     .reproduce_pytorch = reproduce_pytorch,
                                     .counts_skips_in_a_row = hysteresis != 2};
          auto a = numbers(8), b = numbers(8), c = numbers(8);
          at::manual_seed(1);
          for (int i = 0; i < 200; ++i) {
            const auto found_inf = (at::rand({}) < overflows).to(at::kFloat);
            if (i == 100) {  // as a growth interval that was set lower leaves it
              for (auto* state : {&a, &b, &c}) {
                state->counts[kGrowthTracker].fill_(5);
              }
            }
            MEZZO_CUDA::update_loss_scale(a, found_inf, rules);
            update_loss_scale(b, found_inf, rules);
            reference::update_loss_scale(c, found_inf, rules);
            for (const auto* state : {&a, &b}) {
              ASSERT_TRUE(same(state->scale, c.scale)) << i;
              ASSERT_TRUE(same(state->counts, c.counts)) << i;
            }
          }
        }
      }
    }
  }
}

/// Where growing would overflow the scale stays as it is, as PyTorch has it.
TEST(CudaScalingTest, KeepsAScaleThatCannotGrow) {
  const LossScaleRules rules{3e38, 2, 0.5, 1, 0, 3e38, 1, false, /*reproduce_pytorch=*/true, false};
  auto a = numbers(3e38F), b = numbers(3e38F);
  MEZZO_CUDA::update_loss_scale(a, at::zeros({}), rules);
  reference::update_loss_scale(b, at::zeros({}), rules);
  EXPECT_EQ(a.scale.item<float>(), 3e38F);
  EXPECT_TRUE(same(a.scale, b.scale) && same(a.counts, b.counts));
}

}  // namespace
}  // namespace mezzo::kernels
