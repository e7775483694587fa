#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cuda/host_block.h"
#include "kernels/cuda/operators.h"

namespace mezzo::kernels {
namespace {

/// Parameters of all sizes and kinds; where gradients are scaled by 65536 and may be 1e-8.
ParameterUpdates some_updates(size_t slots, bool with_half_copies, std::optional<uint64_t> rounding_seed) {
  at::manual_seed(7);
  ParameterUpdates updates;
  const std::vector<int64_t> sizes = {1, 2, 3, 4, 5, 31, 257, 8191, 8192, 8193, 0, 20001};
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16, at::kHalf};
  for (uint32_t i = 0; i < 40; ++i) {
    const int64_t size = sizes[i % sizes.size()];
    const auto dtype = dtypes[i % 3], gradient_dtype = dtypes[i / 3 % 3];
    const bool is_unaligned = i % 5 == 4;
    const auto tensor = [&](const at::Tensor& values) {
      return is_unaligned
                 ? at::cat({values.narrow(0, 0, 0), at::zeros({1}, values.options()), values}).narrow(0, 1, size)
                 : values;
    };
    ParameterUpdate update;
    update.param = tensor(at::randn({size}).to(dtype));
    update.gradient = tensor((at::randn({size}) * (i % 2 == 0 ? 1e-8 * 65536 : 1)).to(gradient_dtype));
    update.step = at::full({}, static_cast<float>(i % 4));
    for (size_t slot = 0; slot < slots; ++slot) {
      update.slots.push_back(tensor(at::rand({size}) * (i % 7 == 0 ? 1e-37 : slot == 0 ? 1e-3 : 1e-5)));
    }
    if (with_half_copies) {
      update.half_copy = tensor(at::zeros({size}, i % 2 == 0 ? at::kBFloat16 : at::kHalf));
    }
    update.lr = 1e-3 * (i % 3 + 1);
    update.weight_decay = i % 2 == 0 ? 0.01 : 0;
    update.index = i;
    update.rounding_seed = rounding_seed;
    updates.push_back(update);
  }
  return updates;
}

ParameterUpdates copy_of(const ParameterUpdates& updates) {
  ParameterUpdates copies = updates;
  for (ParameterUpdate& copy : copies) {
    for (at::Tensor* tensor : {&copy.param, &copy.half_copy, &copy.step}) {
      *tensor = tensor->defined() ? tensor->clone() : *tensor;
    }
    for (at::Tensor& slot : copy.slots) {
      slot = slot.clone();
    }
  }
  return copies;
}

/// Bit-identical: both run the code of update_elements.h. NaN equals NaN.
void expect_equal(const ParameterUpdates& a, const ParameterUpdates& b) {
  const auto equal = [](const at::Tensor& x, const at::Tensor& y) {
    return at::allclose(x.to(at::kDouble), y.to(at::kDouble), 0, 0, /*equal_nan=*/true);
  };
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(equal(a[i].param, b[i].param)) << "parameter " << i;
    EXPECT_TRUE(equal(a[i].step, b[i].step)) << "step " << i;
    for (size_t slot = 0; slot < a[i].slots.size(); ++slot) {
      EXPECT_TRUE(equal(a[i].slots[slot], b[i].slots[slot])) << "parameter " << i << ", slot " << slot;
    }
    EXPECT_TRUE(!a[i].half_copy.defined() || equal(a[i].half_copy, b[i].half_copy)) << "half_copy " << i;
  }
}

GradientFactors factors(float found_inf) {
  return {at::full({}, 1.0F / 65536), at::full({}, 0.3F), at::full({}, found_inf)};
}

using Update = void (*)(const ParameterUpdates&, const GradientFactors&);

struct Case {
  const char* name;
  size_t slots;
  Update on_gpu, on_cpu, reference;
};

template <bool kAmsgrad, bool kDecoupled>
constexpr AdamSettings kAdam{0.9, 0.999, 1e-8, kAmsgrad, kDecoupled};
constexpr AdamSettings kMaximizing{0.9, 0.999, 1e-8, false, true, /*maximize=*/true};
constexpr SgdSettings kPlain{0, false}, kNesterov{0.9, true}, kDampened{0.9, false, 0.3, /*maximize=*/true};
constexpr RmspropSettings kRmsprop{0.99, 1e-8, 0, false}, kRmspropMomentum{0.9, 1e-8, 0.8, false, /*maximize=*/true},
    kRmspropCentered{0.9, 1e-3, 0, true}, kRmspropCenteredMomentum{0.9, 1e-3, 0.8, true};
constexpr LambSettings kLamb{0.9, 0.999, 1e-6, /*maximize=*/true};

template <auto& kUpdate, auto& kSettings>
void run(const ParameterUpdates& updates, const GradientFactors& of_step) {
  kUpdate(updates, kSettings, of_step);
}

class CudaOptimizerTest : public testing::TestWithParam<Case> {};

TEST_P(CudaOptimizerTest, ChangesWhatTheCpuDoesToTheBit) {
  for (const bool with_half_copies : {false, true}) {
    for (const std::optional<uint64_t> seed : {std::optional<uint64_t>(), std::optional<uint64_t>(0xABCDEF0123)}) {
      const auto a = some_updates(GetParam().slots, with_half_copies, seed), b = copy_of(a);
      for (int step = 0; step < 2; ++step) {
        GetParam().on_gpu(a, factors(0));
        GetParam().on_cpu(b, factors(0));
      }
      expect_equal(a, b);
    }
  }
}

TEST_P(CudaOptimizerTest, TakesParametersOfSeveralLists) {
  const auto some = some_updates(GetParam().slots, true, std::nullopt);
  const auto launches_of = [&](const ParameterUpdates& updates) {
    const int64_t before = MEZZO_CUDA::num_launches();
    GetParam().on_gpu(updates, factors(0));
    return MEZZO_CUDA::num_launches() - before;
  };
  ParameterUpdates a;
  for (size_t i = 0; i < 300; ++i) {
    a.push_back(some[i % 3]);  // of one to three elements
  }
  a = copy_of(a);
  const auto b = copy_of(a);
  const int64_t launches = launches_of(a);
  GetParam().on_cpu(b, factors(0));
  expect_equal(a, b);
  EXPECT_EQ(launches, 2 * launches_of(some));
}

TEST_P(CudaOptimizerTest, CountsTheStepsOfAParameterWithoutElements) {
  const ParameterUpdates a{some_updates(GetParam().slots, true, std::nullopt)[10]}, b = copy_of(a);
  ASSERT_EQ(a[0].param.numel(), 0);
  GetParam().on_gpu(a, factors(0));
  GetParam().on_cpu(b, factors(0));
  expect_equal(a, b);
}

TEST_P(CudaOptimizerTest, ChangesNothingWhereTheStepIsSkipped) {
  const auto a = some_updates(GetParam().slots, true, std::nullopt), b = copy_of(a);
  a[0].gradient.fill_(std::numeric_limits<float>::infinity());
  GetParam().on_gpu(a, factors(1));
  expect_equal(a, b);
}

TEST_P(CudaOptimizerTest, TakesUpdatesWithoutFactors) {
  const auto a = some_updates(GetParam().slots, false, std::nullopt), b = copy_of(a);
  GetParam().on_gpu(a, {});
  GetParam().on_cpu(b, {});
  expect_equal(a, b);
}

TEST_P(CudaOptimizerTest, ReadsALearningRateThatLiesOnTheDevice) {
  const double lr = 1.0 / 3;
  auto a = some_updates(GetParam().slots, true, std::nullopt), b = copy_of(a), c = copy_of(a);
  for (ParameterUpdate& update : b) {
    update.lr = lr * update.lr;
  }
  auto of_step = factors(0);
  GetParam().on_gpu(b, of_step);
  of_step.lr = at::full({}, lr, at::kDouble);
  GetParam().on_gpu(a, of_step);
  GetParam().on_cpu(c, of_step);
  expect_equal(a, b);
  expect_equal(c, b);
}

TEST_P(CudaOptimizerTest, IsNearTheSpecification) {
  auto a = some_updates(GetParam().slots, false, std::nullopt);
  std::erase_if(a, [](const ParameterUpdate& update) { return update.param.scalar_type() != at::kFloat; });
  const auto b = copy_of(a);
  GetParam().on_gpu(a, factors(0));
  GetParam().reference(b, factors(0));
  for (size_t i = 0; i < a.size(); ++i) {
    // A few roundings of float32, of numbers of about 1.
    EXPECT_TRUE(at::allclose(a[i].param, b[i].param, 1e-6, 1e-6)) << i;
  }
}

#define MEZZO_CASE(name, slots, update, settings) \
  Case { name, slots, run<MEZZO_CUDA::update, settings>, run<cpu::update, settings>, run<reference::update, settings> }
INSTANTIATE_TEST_SUITE_P(All,
                         CudaOptimizerTest,
                         testing::Values(MEZZO_CASE("AdamW", 2, adam, (kAdam<false, true>)),
                                         MEZZO_CASE("Adam", 2, adam, (kAdam<false, false>)),
                                         MEZZO_CASE("AdamWAmsgrad", 3, adam, (kAdam<true, true>)),
                                         MEZZO_CASE("Sgd", 0, sgd, kPlain),
                                         MEZZO_CASE("SgdNesterov", 1, sgd, kNesterov),
                                         MEZZO_CASE("AdamWMaximizing", 2, adam, kMaximizing),
                                         MEZZO_CASE("SgdDampened", 1, sgd, kDampened),
                                         MEZZO_CASE("Rmsprop", 1, rmsprop, kRmsprop),
                                         MEZZO_CASE("RmspropMomentum", 2, rmsprop, kRmspropMomentum),
                                         MEZZO_CASE("RmspropCentered", 2, rmsprop, kRmspropCentered),
                                         MEZZO_CASE("RmspropCenteredMomentum", 3, rmsprop, kRmspropCenteredMomentum),
                                         MEZZO_CASE("Lamb", 2, lamb, kLamb)),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(CudaLambTest, ChangesParametersOfAnyMagnitudeAsTheCpuDoes) {
  for (const double magnitude : {1e30, 1e-8, 1e-30}) {
    const auto a = some_updates(2, false, std::nullopt);
    for (const ParameterUpdate& update : a) {
      update.param.mul_(update.param.scalar_type() == at::kHalf ? 1 : magnitude);
    }
    const auto b = copy_of(a);
    MEZZO_CUDA::lamb(a, kLamb, factors(0));
    cpu::lamb(b, kLamb, factors(0));
    expect_equal(a, b);
  }
}

// The bound of sum_of_squares.h, for tiles of 16 elements.
constexpr double kSquaresTolerance = 17 * 17 * 0x1p-48;

TEST(CudaGradientSummaryTest, SumsSquaresOfAnyMagnitudeWithinTheirBound) {
  const auto sum_of = [](const at::Tensor& gradient) {
    return MEZZO_CUDA::summarize_gradients({gradient}, {}, 1).sum_of_squares.item<double>();
  };
  const auto expect_near = [&](const at::Tensor& gradient, const std::string& what) {
    const double exact = gradient.to(at::kDouble).square().sum().item<double>();
    EXPECT_GT(exact, 0) << what;
    EXPECT_NEAR(sum_of(gradient), exact, kSquaresTolerance * exact) << what;
  };
  at::manual_seed(11);
  for (const double magnitude : {1e-44, 1e-38, 1e-30, 1e-8, 1e-8 * 65536, 1.0, 1e19, 1e30, 3e37}) {
    for (const int64_t size : {1, 63, 8192, 8193, 50001}) {
      expect_near((at::rand({size}) * 4 + 1).mul_(magnitude), std::to_string(magnitude));
    }
  }
  expect_near(at::full({50001}, 3.4e38F), "the largest");
  // Numbers of every magnitude in one tile.
  expect_near(at::pow(10.0F, at::rand({50001}) * 76 - 38).to(at::kFloat), "mixed");
  // Equal numbers round in the same direction, which plain float32 sums add up.
  expect_near(at::full({50001}, 0.1F), "equal");
}

TEST(CudaGradientSummaryTest, EqualsTheCpuUpToTheBoundOfItsSums) {
  std::vector<at::Tensor> gradients;
  for (const ParameterUpdate& update : some_updates(0, false, std::nullopt)) {
    for (int copy = 0; copy < 30; ++copy) {  // enough for two lists
      gradients.push_back(update.gradient.slice(0, 0, copy < 3 ? update.gradient.numel() : 1) * (1 + copy));
    }
  }
  for (const auto& scale : {at::Tensor(), at::full({}, 65536.0F), at::full({}, 0.3F)}) {
    const int64_t before = MEZZO_CUDA::num_launches();
    const auto here = MEZZO_CUDA::summarize_gradients(gradients, scale, 0.1);
    EXPECT_EQ(MEZZO_CUDA::num_launches() - before, 3) << "two lists, and their sum";
    const auto there = cpu::summarize_gradients(gradients, scale, 0.1);
    EXPECT_EQ(here.norm.item<float>(), there.norm.item<float>());
    EXPECT_EQ(here.found_inf.item<float>(), 0);
    EXPECT_EQ(here.inv_scale.item<float>(), there.inv_scale.item<float>());
    EXPECT_EQ(here.clip.item<float>(), there.clip.item<float>());
    EXPECT_NEAR(here.sum_of_squares.item<double>(), there.sum_of_squares.item<double>(),
                kSquaresTolerance * there.sum_of_squares.item<double>());
  }
}

TEST(CudaGradientSummaryTest, FindsInfAndNaNWhereverTheyAre) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t place : {0, 3, 8191, 8192, 9000}) {
        std::vector<at::Tensor> gradients = {at::randn({5}), at::randn({9001}).to(dtype)};
        gradients[1][place] = bad;
        EXPECT_EQ(MEZZO_CUDA::summarize_gradients(gradients, at::full({}, 2.0F), 1).found_inf.item<float>(), 1);
      }
    }
  }
  // The largest numbers that float32 has: their squares fit, their norm does not.
  const auto large = at::full({16}, 3e38F);
  EXPECT_EQ(MEZZO_CUDA::summarize_gradients({large}, {}, 1).found_inf.item<float>(), 1);
  EXPECT_EQ(MEZZO_CUDA::summarize_gradients({large}, at::full({}, 1e3F), 1).found_inf.item<float>(), 0);
  EXPECT_EQ(MEZZO_CUDA::summarize_gradients({at::empty({0})}, {}, 1).norm.item<float>(), 0);
  for (const float lost : {1e-40F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(MEZZO_CUDA::summarize_gradients({at::zeros({3})}, at::full({}, lost), 1).found_inf.item<float>(), 1);
  }
}

}  // namespace
}  // namespace mezzo::kernels
