#include "mezzo/amp/op_policy.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/custom_function.h"
#include "mezzo/amp/module_scope.h"

namespace mezzo {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

AutocastOptions with(const OpPolicy& policy) { return AutocastOptions().policy(policy); }

TEST(OpPolicyTest, CopiesAreIndependent) {
  const auto cpu = OpPolicy::preset("cpu");
  auto changed = cpu;
  changed.set("mm", CastPolicy::kFloat32).set("aten::gelu", CastPolicy::kFloat32);
  EXPECT_EQ(changed.get("mm"), CastPolicy::kFloat32);
  EXPECT_EQ(cpu.get("mm"), CastPolicy::kLowerPrecision);
  EXPECT_EQ(changed.lines().size(), cpu.lines().size() + 1);
}

TEST(OpPolicyTest, AGuardKeepsThePolicyAsItWasWhenItWasOpened) {
  auto policy = OpPolicy::preset("cpu");
  const AutocastGuard autocast(at::kCPU, at::kBFloat16, with(policy));
  policy.set("mm", CastPolicy::kFloat32);
  EXPECT_EQ(at::ones({2, 2}).mm(at::ones({2, 2})).scalar_type(), at::kBFloat16);
}

TEST(OpPolicyTest, UnknownPresetIsRefusedWithTheNames) {
  EXPECT_THAT(
      [] { OpPolicy::preset("gpu"); },
      ThrowsMessage<c10::ValueError>(HasSubstr("no preset 'gpu': cuda, cpu, cuda_2020, norms_stay_low, masks_fp32")));
}

TEST(OpPolicyTest, MasksInFloat32TakeNumbersThatHalfCannotHold) {
  const auto mask = at::eye(3).to(at::kBool);
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const AutocastGuard autocast(at::kCPU, dtype, with(OpPolicy::preset("masks_fp32")));
    const auto scores = at::ones({3, 3}).requires_grad_().mm(at::ones({3, 3}));
    ASSERT_EQ(scores.scalar_type(), dtype);
    for (const auto& masked : {scores.masked_fill(mask, -1e9), scores.masked_fill(mask, at::scalar_tensor(-1e9))}) {
      ASSERT_EQ(masked.scalar_type(), at::kFloat);
      const auto weights = masked.softmax(-1);
      EXPECT_TRUE(at::allclose(weights, mask.logical_not() * 0.5));
      EXPECT_EQ(weights.mm(at::ones({3, 3})).scalar_type(), dtype);
    }
  }
}

TEST(OpPolicyTest, BuiltInListsForADeviceTypeWhatAutocastDoesThere) {
  for (const auto device_type : {c10::kCPU, c10::kMPS, c10::kXPU}) {
    EXPECT_EQ(OpPolicy::built_in(device_type).lines(), autocast_ops(device_type));
  }
  EXPECT_EQ(OpPolicy::built_in(c10::kCUDA).lines(), OpPolicy::preset("cuda").lines());
}

TEST(OpPolicyTest, EachThreadFollowsItsOwnPolicy) {
  constexpr int kThreads = 8;
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &right] {
      const auto weight = at::ones({4, 4}).requires_grad_();
      bool all = true;
      for (int i = 0; i < 200; ++i) {
        auto policy = OpPolicy::preset(t % 2 == 0 ? "cpu" : "cuda");
        policy.set("relu", t % 3 == 0 ? CastPolicy::kLowerPrecision : CastPolicy::kUntouched);
        const auto dtype = t % 4 < 2 ? at::kBFloat16 : at::kHalf;
        const AutocastGuard autocast(at::kCPU, dtype, with(policy));
        all = all && at::ones({4, 4}).mm(weight).scalar_type() == dtype &&
              at::ones({4}).relu().scalar_type() == (t % 3 == 0 ? dtype : at::kFloat) &&
              at::ones({4}, dtype).exp().scalar_type() == (t % 2 == 0 ? dtype : at::kFloat) &&
              autocast_cache_size() == 1;
      }
      right += all ? 1 : 0;
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(right, kThreads);
}

TEST(OpPolicyTest, OneLogTakesTheCastsOfManyThreads) {
  CastLog log;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const AutocastGuard autocast(at::kCPU, at::kBFloat16, AutocastOptions().log(&log));
      for (int i = 0; i < 100; ++i) {
        const ModuleScope scope("layer", i % 2);
        at::ones({2, 2}).mm(at::ones({2, 2}));
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  const auto entries = log.entries();
  ASSERT_EQ(entries.size(), 2);
  EXPECT_EQ(entries[0].module, "layer.0");
  EXPECT_EQ(entries[0].count + entries[1].count, 800);
  EXPECT_EQ(entries[0].bytes, 400 * 2 * 2 * 2);
}

TEST(OpPolicyTest, OpsOfOtherLibrariesTakeALine) {
  torch::Library library(torch::Library::FRAGMENT, "mezzo_test", std::nullopt, __FILE__, __LINE__);
  library.def("twice(Tensor x) -> Tensor", [](const at::Tensor& x) { return x + x; });
  const auto twice = [] {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("mezzo_test::twice", "")
        .typed<at::Tensor(const at::Tensor&)>()
        .call(at::ones({2}));
  };
  const auto policy = OpPolicy::preset("cpu").set("mezzo_test::twice", CastPolicy::kLowerPrecision);
  const AutocastGuard autocast(at::kCPU, at::kHalf, with(policy));
  EXPECT_EQ(twice().scalar_type(), at::kHalf);
  const AutocastGuard listed_no_more(at::kCPU, at::kHalf, with(OpPolicy::preset("cpu")));
  EXPECT_EQ(twice().scalar_type(), at::kFloat);
}

at::Tensor add_all(const at::Tensor& x, const std::vector<at::Tensor>& others, const std::optional<at::Tensor>& bias) {
  auto sum = x;
  for (const at::Tensor& other : others) {
    sum = sum + other;
  }
  return bias ? sum + *bias : sum;
}

TEST(AutocastFunctionTest, FollowsItsLineInARegionAndNoneOutside) {
  const auto fused = autocast_function("test::add_all", CastPolicy::kLowerPrecision, at::kCPU, add_all);
  const auto x = at::ones({2});
  const std::vector<at::Tensor> others = {at::ones({2}), at::ones({2}, at::kHalf)};
  const auto run = [&] { return fused(x, others, std::optional(x)).scalar_type(); };

  EXPECT_EQ(run(), at::kFloat);
  const AutocastGuard autocast(at::kCPU, at::kBFloat16);
  EXPECT_EQ(run(), at::kBFloat16);
  {
    const AutocastGuard in_float(at::kCPU, at::kBFloat16,
                                 with(OpPolicy::preset("cpu").set("test::add_all", CastPolicy::kFloat32)));
    EXPECT_EQ(run(), at::kFloat);
    const AutocastGuard off(at::kCPU, at::kBFloat16, /*enabled=*/false);
    EXPECT_EQ(fused(at::ones({2}, at::kHalf), std::vector<at::Tensor>(), std::nullopt).scalar_type(), at::kHalf);
  }
  const AutocastGuard banned(at::kCPU, at::kBFloat16, with(OpPolicy().set("test::add_all", CastPolicy::kBanned)));
  EXPECT_THAT(run, ThrowsMessage<c10::Error>(HasSubstr("autocast: test::add_all is banned")));
}

TEST(AutocastFunctionTest, PromotesToTheWidestOfAllItsTensors) {
  const auto fused = autocast_function("test::promoting", CastPolicy::kPromote, at::kCPU, add_all);
  const AutocastGuard autocast(at::kCPU, at::kHalf);
  const auto low = at::ones({2}, at::kHalf), full = at::ones({2});
  EXPECT_EQ(fused(low, std::vector{low}, std::nullopt).scalar_type(), at::kHalf);
  EXPECT_EQ(fused(low, std::vector{full}, std::nullopt).scalar_type(), at::kFloat);
  EXPECT_THAT([&] { fused(at::ones({2}, at::kBFloat16), std::vector{low}, std::nullopt); },
              ThrowsMessage<c10::Error>(HasSubstr("test::promoting got a bfloat16 tensor in a region of float16")));
}

TEST(AutocastFunctionTest, RunsWhatItIsMadeOfWithAutocastOff) {
  const auto product = autocast_function("test::product", CastPolicy::kFloat32, at::kCPU,
                                         [](const at::Tensor& a, const at::Tensor& b) { return a.mm(b); });
  CastLog log;
  const AutocastGuard autocast(at::kCPU, at::kBFloat16, AutocastOptions().log(&log));
  EXPECT_EQ(product(at::ones({2, 2}, at::kBFloat16), at::ones({2, 2})).scalar_type(), at::kFloat);
  ASSERT_EQ(log.entries().size(), 1);
  EXPECT_EQ(log.entries()[0].op, "test::product");
}

TEST(AutocastFunctionTest, KeepsNoCastsOutsideOfPolicyRegions) {
  const auto fused = autocast_function("test::add_all", CastPolicy::kLowerPrecision, at::kCPU, add_all);
  const auto weight = at::ones({2}).requires_grad_();
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    fused(weight, std::vector<at::Tensor>(), std::nullopt);
    EXPECT_EQ(autocast_cache_size(), 0);
    const AutocastGuard policy(at::kCPU, at::kBFloat16, with(OpPolicy::preset("cpu")));
    fused(weight, std::vector<at::Tensor>(), std::nullopt);
    EXPECT_EQ(autocast_cache_size(), 1);
  }
  EXPECT_EQ(autocast_cache_size(), 0);
}

TEST(AutocastFunctionTest, RefusesWhatOnlyOpsCanFollow) {
  EXPECT_THAT([] { (void)autocast_function("fused", CastPolicy::kFloat32, at::kCPU, add_all); },
              ThrowsMessage<c10::ValueError>(HasSubstr("such as mylib::fused")));
  EXPECT_THAT([] { (void)autocast_function("test::f", CastPolicy::kFloat32SetOptDtype, at::kCPU, add_all); },
              ThrowsMessage<c10::ValueError>(HasSubstr("test::f is a function. Use the policy fp32.")));
}

struct Forgetful : torch::autograd::Function<Forgetful> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grad) {
    return custom_bwd(ctx, at::kCPU, [&] { return torch::autograd::variable_list{grad[0] * 2}; });
  }
};

TEST(CustomFunctionTest, BackwardWithoutItsForwardIsRefused) {
  const auto x = at::ones({2}).requires_grad_();
  EXPECT_THAT([&] { Forgetful::apply(x).sum().backward(); },
              ThrowsMessage<c10::Error>(HasSubstr("forward did not run through custom_fwd")));
}

struct PolicyProduct : torch::autograd::Function<PolicyProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& a) {
    return custom_fwd(
        ctx, at::kCPU, std::nullopt,
        [&](const at::Tensor& x) {
          ctx->save_for_backward({x});
          return x.mm(x);
        },
        a);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grad) {
    return custom_bwd(ctx, at::kCPU, [&] {
      const auto x = ctx->get_saved_variables()[0];
      seen = grad[0].mm(x).scalar_type();
      return torch::autograd::variable_list{(grad[0].to(at::kFloat) * x)};
    });
  }
  static inline at::ScalarType seen = at::kInt;
};

TEST(CustomFunctionTest, BackwardFollowsThePolicyOfItsForward) {
  const auto x = at::ones({2, 2}).requires_grad_();
  at::Tensor product;
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16,
                                 with(OpPolicy::preset("cpu").set("mm", CastPolicy::kFloat32)));
    product = PolicyProduct::apply(x);
  }
  product.sum().backward();
  EXPECT_EQ(PolicyProduct::seen, at::kFloat);
}

TEST(CustomFunctionTest, BackwardOfAForwardWithoutAPolicyFollowsPyTorchsListsWhateverItsCallerFollows) {
  const auto x = at::ones({2, 2}).requires_grad_();
  at::Tensor product;
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    product = PolicyProduct::apply(x);
  }
  const AutocastGuard of_caller(at::kCPU, at::kHalf, with(OpPolicy::preset("cpu").set("mm", CastPolicy::kFloat32)));
  product.sum().backward();
  EXPECT_EQ(PolicyProduct::seen, at::kBFloat16);
  EXPECT_EQ(at::ones({2, 2}).mm(at::ones({2, 2})).scalar_type(), at::kFloat) << "and the caller's is in force again";
}

}  // namespace
}  // namespace mezzo
