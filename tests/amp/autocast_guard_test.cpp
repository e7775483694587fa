#include "mezzo/amp/autocast_guard.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include <functional>
#include <future>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/custom_function.h"

namespace mezzo {
namespace {

/// Everything a guard may touch, so that "restored exactly" can be said in one comparison.
struct Settings {
  bool cpu_enabled = at::autocast::is_autocast_enabled(at::kCPU);
  bool cuda_enabled = at::autocast::is_autocast_enabled(at::kCUDA);
  at::ScalarType cpu_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  at::ScalarType cuda_dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  bool cache_enabled = at::autocast::is_autocast_cache_enabled();
  int nesting = [] {
    at::autocast::increment_nesting();
    return at::autocast::decrement_nesting();
  }();

  bool operator==(const Settings&) const = default;
};

torch::Tensor product() { return torch::ones({2, 2}).mm(torch::ones({2, 2})); }

TEST(AutocastGuardTest, DisablesARegionAndPutsItBack) {
  const AutocastGuard autocast(torch::kCPU, torch::kBFloat16);
  const Settings before;
  {
    const auto full = AutocastGuard::disabled(torch::kCPU);
    EXPECT_EQ(product().scalar_type(), torch::kFloat);
  }
  EXPECT_EQ(Settings(), before);
  EXPECT_EQ(product().scalar_type(), torch::kBFloat16);
  EXPECT_THROW(const auto none = AutocastGuard::disabled(torch::kLazy), c10::ValueError);
}

TEST(AutocastGuardTest, WarnsOfARegionForCudaWhereThereIsNone) {
  if (torch::cuda::is_available()) {
    GTEST_SKIP() << "there is a GPU";
  }
  struct Handler : c10::WarningHandler {
    void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
    std::vector<std::string> messages;
  } handler;
  const c10::WarningUtils::WarnAlways always(true);  // or an earlier test may have had the one warning
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  {
    const AutocastGuard autocast(torch::kCUDA, torch::kHalf, /*enabled=*/false);
  }
  {
    const AutocastGuard autocast(torch::kCPU, torch::kBFloat16);
  }
  EXPECT_TRUE(handler.messages.empty());
  {
    const AutocastGuard autocast(torch::kCUDA, torch::kHalf);
  }
  ASSERT_EQ(handler.messages.size(), 1u);
  EXPECT_NE(handler.messages.front().find("has no effect, because this process has no GPU"), std::string::npos);
}

TEST(AutocastGuardTest, WrapsAFunctionWithAPolicy) {
  auto policy = OpPolicy::built_in(torch::kCPU);
  policy.set("aten::mm", CastPolicy::kFloat32);
  auto in_float = autocast(torch::kCPU, torch::kBFloat16, product, AutocastOptions().policy(policy));
  auto in_half = autocast(torch::kCPU, torch::kBFloat16, product);
  EXPECT_EQ(in_float().scalar_type(), torch::kFloat);
  EXPECT_EQ(in_half().scalar_type(), torch::kBFloat16);
}

class AutocastGuardDtypeTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(AutocastGuardDtypeTest, RunsMatrixProductsInItsDtypeAndLossesInFloat32) {
  AutocastGuard autocast(torch::kCPU, GetParam());
  EXPECT_EQ(product().scalar_type(), GetParam());
  EXPECT_EQ(torch::mse_loss(product(), product()).scalar_type(), torch::kFloat);
}

INSTANTIATE_TEST_SUITE_P(HalfAndBFloat16, AutocastGuardDtypeTest, testing::Values(torch::kHalf, torch::kBFloat16));

TEST(AutocastGuardTest, RestoresExactlyWhatItFoundWhenNested) {
  const Settings outside;
  {
    AutocastGuard outer(torch::kCPU, torch::kHalf, /*enabled=*/true, /*cache_enabled=*/false);
    const Settings in_outer;
    EXPECT_EQ(in_outer.nesting, outside.nesting + 1);
    EXPECT_FALSE(in_outer.cache_enabled);
    {
      AutocastGuard disabled(torch::kCPU, torch::kBFloat16, /*enabled=*/false);
      EXPECT_EQ(product().scalar_type(), torch::kFloat);
      EXPECT_FALSE(Settings().cache_enabled) << "nullopt keeps the outer setting";
      AutocastGuard other_device(torch::kCUDA, torch::kBFloat16);
      EXPECT_EQ(product().scalar_type(), torch::kFloat) << "a CUDA region leaves CPU tensors alone";
      AutocastGuard reenabled(torch::kCPU, torch::kBFloat16, /*enabled=*/true, /*cache_enabled=*/true);
      EXPECT_EQ(product().scalar_type(), torch::kBFloat16);
    }
    EXPECT_EQ(Settings(), in_outer);
    EXPECT_EQ(product().scalar_type(), torch::kHalf);
  }
  EXPECT_EQ(Settings(), outside);
}

TEST(AutocastGuardTest, RestoresTheStateWhenAnExceptionLeavesTheScope) {
  const Settings outside;
  EXPECT_THROW(
      {
        AutocastGuard autocast(torch::kCPU, torch::kBFloat16);
        AutocastGuard inner(torch::kCUDA, torch::kHalf, /*enabled=*/false, /*cache_enabled=*/false);
        torch::ones({2, 3}).mm(torch::ones({2, 3}));
      },
      c10::Error);
  EXPECT_EQ(Settings(), outside);
}

TEST(AutocastGuardTest, TakesTheDeviceTypesCurrentDtypeWhenNoneIsGiven) {
  {
    AutocastGuard autocast(torch::kCPU);
    EXPECT_EQ(product().scalar_type(), torch::kBFloat16);
  }
  AutocastGuard half(torch::kCPU, torch::kHalf, /*enabled=*/false);
  AutocastGuard autocast(torch::kCPU);
  EXPECT_EQ(product().scalar_type(), torch::kHalf);
}

TEST(AutocastGuardTest, RefusesOtherDtypesAndDevicesBeforeAnythingChanges) {
  const Settings outside;
  try {
    AutocastGuard autocast(torch::kCPU, torch::kFloat);
    FAIL() << "float32 accepted";
  } catch (const c10::ValueError& error) {
    EXPECT_STREQ(error.what_without_backtrace(),
                 "autocast: dtype must be float16 or bfloat16, got float32. For a full-precision scope, set the option "
                 "enabled to false.");
  }
  EXPECT_THROW(AutocastGuard autocast(torch::kCPU, torch::kDouble, /*enabled=*/false), c10::ValueError);
  try {
    AutocastGuard autocast(torch::kMeta, torch::kHalf);
    FAIL() << "meta accepted";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(error.msg().find("device type meta has no autocast"), std::string::npos) << error.msg();
  }
  try {
    AutocastGuard autocast(torch::kHPU, torch::kBFloat16);
    FAIL() << "hpu accepted";
  } catch (const c10::ValueError& error) {
    EXPECT_STREQ(error.what_without_backtrace(),
                 "autocast: no op has an autocast kernel for device type hpu, so autocast would change nothing. "
                 "Load the library of that backend first, or pass an op policy.");
  }
  EXPECT_NO_THROW(AutocastGuard::disabled(torch::kHPU));
  EXPECT_NO_THROW(AutocastGuard(torch::kHPU, torch::kBFloat16, AutocastOptions().policy(OpPolicy())));
  EXPECT_EQ(Settings(), outside);
}

TEST(AutocastGuardTest, NestsInAFloat32RegionThatPythonSet) {
  const Settings outside;
  at::autocast::set_autocast_enabled(at::kCPU, true);  // what torch.autocast does on entry
  at::autocast::set_autocast_dtype(at::kCPU, torch::kFloat);
  const Settings in_python;
  const auto half = torch::ones({2, 2}, torch::kHalf);
  {
    const AutocastGuard same(torch::kCPU);
    EXPECT_EQ(half.mm(half).scalar_type(), torch::kFloat);
    const AutocastGuard lower(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(product().scalar_type(), torch::kBFloat16);
  }
  const auto times = autocast_function("test::times", CastPolicy::kLowerPrecision, torch::kCPU,
                                       [](const torch::Tensor& a, const torch::Tensor& b) { return a * b; });
  EXPECT_EQ(times(half, half).scalar_type(), torch::kFloat);
  {
    const AutocastGuard policy(torch::kCPU, torch::kHalf, AutocastOptions().policy(OpPolicy::preset("cuda")));
    const AutocastGuard same(torch::kCPU);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kFloat);
    EXPECT_EQ(half.mm(half).scalar_type(), torch::kFloat);
    EXPECT_EQ(torch::addcmul(half, half, torch::ones({2, 2})).scalar_type(), torch::kFloat);
    EXPECT_EQ(times(half, torch::ones({2, 2}, torch::requires_grad())).scalar_type(), torch::kFloat);
    EXPECT_EQ(autocast_cache_size(), 0) << "nothing was cast to float32 that was not of it already";
  }
  EXPECT_EQ(Settings(), in_python);
  at::autocast::set_autocast_enabled(at::kCPU, outside.cpu_enabled);
  at::autocast::set_autocast_dtype(at::kCPU, outside.cpu_dtype);
}

/// As a program does that takes its precision from a flag.
TEST(AutocastGuardTest, TakesTheDeviceOfATensorAndFloat32WhenDisabled) {
  const Settings outside;
  const auto x = torch::ones({2, 2});
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
    const bool is_half = dtype != torch::kFloat;
    const AutocastGuard autocast(x.device(), dtype, is_half);
    EXPECT_EQ(x.mm(x).scalar_type(), dtype);
    EXPECT_EQ(mezzo::autocast(x.device(), dtype, product, is_half)().scalar_type(), dtype);
    const AutocastGuard with_options(x.device(), dtype, AutocastOptions().enabled(is_half));
    EXPECT_EQ(x.mm(x).scalar_type(), dtype);
    if (!is_half) {
      EXPECT_EQ(Settings().cpu_dtype, outside.cpu_dtype) << "for a guard within that names no dtype";
    }
    const auto full = AutocastGuard::disabled(torch::Device(torch::kCPU, 0));
    EXPECT_EQ(x.mm(x).scalar_type(), torch::kFloat);
    const AutocastGuard again(x.device());
    EXPECT_EQ(x.mm(x).scalar_type(), is_half ? dtype : outside.cpu_dtype);
  }
  EXPECT_EQ(Settings(), outside);
}

/// A linear layer, and the gradients that it gave: in one region, as PyTorch computes them.
struct Layer {
  torch::Tensor weight = torch::linspace(-1, 1, 12).view({3, 4}).clone().requires_grad_();  // views are not kept
  torch::Tensor bias = torch::linspace(0, 1, 3).requires_grad_();
  torch::Tensor x = torch::linspace(-2, 2, 8).view({2, 4});

  torch::Tensor forward() const { return torch::linear(x, weight, bias); }
  /// By an op whose arguments are cached casts alone.
  torch::Tensor weights_alone() const { return weight.mm(weight.t()); }
  torch::Tensor gradient_of(const torch::Tensor& output) const {
    return torch::autograd::grad({output.to(torch::kFloat).square().sum()}, {weight}, {}, /*retain_graph=*/true)
        .front();
  }
};

TEST(AutocastGuardTest, NestsGuardsOfDifferentDtypesAroundOneModel) {
  const Layer layer;
  const auto alone = [&](at::ScalarType dtype) {
    const AutocastGuard autocast(torch::kCPU, dtype);
    return layer.forward();
  };
  const auto half = alone(torch::kHalf), bfloat = alone(torch::kBFloat16);
  for (const bool has_log : {false, true}) {
    CastLog log;
    const auto options = has_log ? AutocastOptions().log(&log) : AutocastOptions();
    const AutocastGuard outer(torch::kCPU, torch::kHalf, options);
    const auto check = [&](const torch::Tensor& expected) {
      const auto output = layer.forward();
      ASSERT_EQ(output.scalar_type(), expected.scalar_type());
      EXPECT_TRUE(torch::equal(output, expected));
      EXPECT_TRUE(torch::equal(layer.gradient_of(output), layer.gradient_of(expected)));
      EXPECT_EQ(layer.weights_alone().scalar_type(), expected.scalar_type());
    };
    check(half);
    {
      const AutocastGuard inner(torch::kCPU, torch::kBFloat16);
      check(bfloat);
      {
        const auto full = AutocastGuard::disabled(torch::kCPU);
        const AutocastGuard innermost(torch::kCPU, torch::kHalf);
        check(half);
      }
      check(bfloat);
    }
    check(half);
    const auto full = AutocastGuard::disabled(torch::kCPU);
    const AutocastGuard after_disabled(torch::kCPU, torch::kBFloat16);
    check(bfloat);
  }
}

TEST(AutocastGuardTest, KeepsCastsForOneDtypeAtATime) {
  const Layer layer;
  const auto is_kept = [&] {
    const auto first = layer.forward();
    const torch::NoGradGuard no_grad;
    layer.weight.add_(1);
    const bool kept = torch::equal(layer.forward(), first);
    layer.weight.sub_(1);
    return kept;
  };
  {
    const AutocastGuard half(torch::kCPU, torch::kHalf);
    EXPECT_TRUE(is_kept());
    const AutocastGuard nested(torch::kCPU, torch::kHalf);
    EXPECT_TRUE(is_kept());
    const AutocastGuard other(torch::kCPU, torch::kBFloat16);
    EXPECT_FALSE(is_kept());
  }
  const AutocastGuard bfloat(torch::kCPU, torch::kBFloat16);
  EXPECT_TRUE(is_kept());
}

TEST(AutocastGuardTest, NestsInAPythonRegionOfAnotherDtype) {
  const Layer layer;
  const Settings outside;
  at::autocast::set_autocast_enabled(at::kCPU, true);  // what torch.autocast does on entry
  at::autocast::set_autocast_dtype(at::kCPU, torch::kHalf);
  at::autocast::increment_nesting();
  EXPECT_EQ(layer.forward().scalar_type(), torch::kHalf);
  {
    const AutocastGuard bfloat(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(layer.forward().scalar_type(), torch::kBFloat16);
    EXPECT_EQ(layer.weights_alone().scalar_type(), torch::kBFloat16);
  }
  EXPECT_EQ(layer.weights_alone().scalar_type(), torch::kHalf);
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, outside.cpu_enabled);
  at::autocast::set_autocast_dtype(at::kCPU, outside.cpu_dtype);
}

TEST(AutocastGuardTest, ThreadsOfDifferentDtypesShareOneModel) {
  const Layer layer;
  constexpr int kRounds = 200;
  const auto count_right = [&](at::ScalarType dtype) {
    int right = 0;
    for (int i = 0; i < kRounds; ++i) {
      const AutocastGuard autocast(torch::kCPU, dtype);
      right += layer.forward().scalar_type() == dtype && layer.weights_alone().scalar_type() == dtype ? 1 : 0;
    }
    return right;
  };
  {  // one region is open while another thread opens the other's
    const AutocastGuard autocast(torch::kCPU, torch::kHalf);
    EXPECT_EQ(layer.forward().scalar_type(), torch::kHalf);
    std::async(std::launch::async, [&] {
      const AutocastGuard bfloat(torch::kCPU, torch::kBFloat16);
      EXPECT_EQ(layer.weights_alone().scalar_type(), torch::kBFloat16);
    }).get();
    EXPECT_EQ(layer.weights_alone().scalar_type(), torch::kHalf);
  }
  auto right_in_half = std::async(std::launch::async, count_right, torch::kHalf);
  EXPECT_EQ(count_right(torch::kBFloat16), kRounds);
  EXPECT_EQ(right_in_half.get(), kRounds);
}

TEST(AutocastGuardTest, NamesTheOpWhoseNumberDoesNotFit) {
  const auto mask = torch::eye(3).to(torch::kBool);
  const auto scores = [] { return torch::ones({3, 3}).mm(torch::ones({3, 3})); };
  const AutocastGuard autocast(torch::kCPU, torch::kHalf);
  using Call = std::function<torch::Tensor(torch::Tensor)>;
  const auto row = torch::zeros({1}, torch::kLong);
  const std::vector<std::pair<std::string, Call>> calls = {
      {"aten::masked_fill.Scalar", [&](auto x) { return x.masked_fill(mask, -1e9); }},
      {"aten::masked_fill.Tensor", [&](auto x) { return x.masked_fill(mask, torch::tensor(-1e9)); }},
      {"aten::masked_fill_.Scalar", [&](auto x) { return x.masked_fill_(mask, -1e9); }},
      {"aten::masked_fill_.Tensor", [&](auto x) { return x.masked_fill_(mask, torch::tensor(-1e9)); }},
      {"aten::fill_.Scalar", [&](auto x) { return x.fill_(-1e9); }},
      {"aten::full_like", [&](auto x) { return torch::full_like(x, -1e9); }},
      {"aten::new_full", [&](auto x) { return x.new_full({2}, -1e9); }},
      {"aten::fill_diagonal_", [&](auto x) { return x.fill_diagonal_(-1e9); }},
      {"aten::constant_pad_nd", [&](auto x) { return torch::constant_pad_nd(x, {1, 1}, -1e9); }},
      {"aten::index_fill.int_Scalar", [&](auto x) { return x.index_fill(0, row, -1e9); }},
      {"aten::index_fill_.int_Scalar", [&](auto x) { return x.index_fill_(0, row, -1e9); }},
      {"aten::scatter.value", [&](auto x) { return x.scatter(0, row.view({1, 1}), -1e9); }},
      {"aten::scatter_.value", [&](auto x) { return x.scatter_(0, row.view({1, 1}), -1e9); }},
      {"aten::clamp", [&](auto x) { return x.clamp(-1e9, 1e9); }},
      {"aten::clamp_", [&](auto x) { return x.clamp_(-1e9, 1e9); }},
      {"aten::clamp_min", [&](auto x) { return x.clamp_min(-1e9); }},
      {"aten::clamp_max_", [&](auto x) { return x.clamp_max_(1e9); }},
      {"aten::hardtanh", [&](auto x) { return torch::hardtanh(x, -1e9, 1e9); }},
      {"aten::hardshrink", [&](auto x) { return torch::hardshrink(x, 1e9); }},
      {"aten::threshold", [&](auto x) { return torch::threshold(x, 1e9, -1e9); }},
  };
  for (const auto& [op, call] : calls) {
    try {
      call(scores());
      ADD_FAILURE() << op << " takes it";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  testing::StartsWith(op + ": value cannot be converted to type c10::Half without overflow. "
                                           "Pass a number that fits (float16 ends at 65504)"));
      EXPECT_EQ(std::string(error.what_without_backtrace()).find("masks_fp32") != std::string::npos,
                op.starts_with("aten::masked_fill."));
    }
  }
  for (const double fits : {-65504.0, -std::numeric_limits<double>::infinity()}) {  // the advice
    EXPECT_EQ(scores().masked_fill(mask, fits)[0][0].item<double>(), fits);
  }
  EXPECT_EQ(scores().to(torch::kFloat).masked_fill(mask, -1e9)[0][0].item<float>(), -1e9F);
  EXPECT_THROW(scores().masked_fill(torch::ones({2}, torch::kBool), 0), c10::Error) << "other errors are as they were";
  const auto weight = torch::ones({3, 3}, torch::requires_grad());
  weight.mm(torch::ones({3, 3})).masked_fill(mask, -1).sum().backward();
  EXPECT_TRUE(torch::equal(weight.grad(), torch::full({3, 3}, 2.0)));
}

TEST(AutocastGuardTest, IsThreadLocal) {
  AutocastGuard autocast(torch::kCPU, torch::kBFloat16);
  at::ScalarType on_worker{};
  std::thread([&] { on_worker = product().scalar_type(); }).join();
  EXPECT_EQ(on_worker, torch::kFloat);
}

TEST(AutocastGuardTest, CachesWeightCastsUntilTheOutermostRegionEnds) {
  auto weight = torch::ones({2, 2}, torch::requires_grad());
  const auto x = torch::ones({2, 2});
  {
    AutocastGuard autocast(torch::kCPU, torch::kBFloat16);
    const auto before = x.mm(weight);
    {
      AutocastGuard inner(torch::kCPU, torch::kBFloat16);
    }
    {
      torch::NoGradGuard no_grad;
      weight.mul_(2);
    }
    EXPECT_TRUE(torch::equal(x.mm(weight), before)) << "one region, one cast";
  }
  AutocastGuard autocast(torch::kCPU, torch::kBFloat16);
  EXPECT_TRUE(torch::equal(x.mm(weight), torch::full({2, 2}, 4.0, torch::kBFloat16))) << "a new region casts afresh";
}

TEST(AutocastFunctionTest, RunsOnAnyThreadInItsOwnRegion) {
  auto forward = autocast(torch::kCPU, torch::kHalf, [](const torch::Tensor& x) { return x.mm(x); });
  at::ScalarType on_worker{};
  std::thread([&] { on_worker = forward(torch::ones({2, 2})).scalar_type(); }).join();
  EXPECT_EQ(on_worker, torch::kHalf);
  EXPECT_EQ(product().scalar_type(), torch::kFloat);
}

TEST(AutocastFunctionTest, PassesReferencesMoveOnlyArgumentsAndExceptionsThrough) {
  const Settings outside;
  int calls = 0;
  auto count = autocast(torch::kCPU, torch::kHalf, [](int& value) -> int& { return ++value; });
  static_assert(std::is_same_v<decltype(count(calls)), int&>);
  EXPECT_EQ(&count(calls), &calls);
  auto take = autocast(torch::kCPU, torch::kHalf, [](std::unique_ptr<int> value) { return *value; });
  EXPECT_EQ(take(std::make_unique<int>(7)), 7);
  auto fail = autocast(torch::kCPU, torch::kHalf, [] { throw std::runtime_error("from inside"); });
  EXPECT_THROW(fail(), std::runtime_error);
  EXPECT_EQ(Settings(), outside);
}

}  // namespace
}  // namespace mezzo
