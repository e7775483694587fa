#include "mezzo/amp/autocast_state.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <new>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"

namespace {

/// How many allocations of this thread succeed before one fails; negative: all.
thread_local int allocations_left = -1;

}  // namespace

void* operator new(size_t size) {
  if (allocations_left == 0) {
    throw std::bad_alloc();
  }
  allocations_left -= allocations_left > 0 ? 1 : 0;
  if (void* memory = std::malloc(size > 0 ? size : 1)) {
    return memory;
  }
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept { return std::malloc(size > 0 ? size : 1); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace mezzo {
namespace {

at::ScalarType dtype_of_product() {
  const auto x = at::ones({2, 2});
  return at::matmul(x, x).scalar_type();
}

/// On a separate thread, under `state`; afterwards that thread is as it was.
at::ScalarType dtype_on_another_thread(const AutocastState& state) {
  return std::async(std::launch::async,
                    [&] {
                      at::ScalarType inside;
                      {
                        const AutocastStateGuard guard(state);
                        inside = dtype_of_product();
                      }
                      EXPECT_EQ(dtype_of_product(), at::kFloat);
                      EXPECT_EQ(at::autocast::increment_nesting(), 1);
                      at::autocast::decrement_nesting();
                      return inside;
                    })
      .get();
}

TEST(AutocastStateTest, CarriesDtypeAndPolicyToAnotherThread) {
  EXPECT_EQ(dtype_on_another_thread(AutocastState::current()), at::kFloat);
  const AutocastGuard bf16(at::kCPU, at::kBFloat16);
  EXPECT_EQ(dtype_on_another_thread(AutocastState::current()), at::kBFloat16);
  {
    const AutocastGuard half(at::kCPU, at::kHalf);
    EXPECT_EQ(dtype_on_another_thread(AutocastState::current()), at::kHalf);
    const AutocastGuard off(at::kCPU, at::kHalf, /*enabled=*/false);
    EXPECT_EQ(dtype_on_another_thread(AutocastState::current()), at::kFloat);
  }
  OpPolicy policy = OpPolicy::built_in(at::kCPU);
  policy.set("matmul", CastPolicy::kFloat32);
  CastLog log;
  const AutocastGuard with_policy(at::kCPU, at::kBFloat16, AutocastOptions().policy(policy).log(&log));
  EXPECT_EQ(dtype_on_another_thread(AutocastState::current()), at::kFloat);
}

TEST(AutocastStateTest, PutsItsModulePathInPlaceOfTheThreads) {
  const auto outside = AutocastState::current();
  const ModuleScope encoder("encoder");
  const auto in_encoder = AutocastState::current();
  {
    const AutocastStateGuard same(in_encoder);
    EXPECT_EQ(ModuleScope::current_path(), "encoder");
    const ModuleScope layer("layer", 3);
    EXPECT_EQ(ModuleScope::current_path(), "encoder.layer.3");
    const AutocastStateGuard none(outside);
    EXPECT_EQ(ModuleScope::current_path(), "");
    const ModuleScope head("head");
    EXPECT_EQ(ModuleScope::current_path(), "head");
  }
  EXPECT_EQ(ModuleScope::current_path(), "encoder");
  std::async(std::launch::async, [&] {
    const ModuleScope replica("replica", 1);
    {
      const AutocastStateGuard there(in_encoder);
      EXPECT_EQ(ModuleScope::current_path(), "encoder");
    }
    EXPECT_EQ(ModuleScope::current_path(), "replica.1");
  }).get();
}

TEST(AutocastStateTest, AStateOfAnotherDtypeDoesNotGetTheCastsOfOpenRegions) {
  const auto weight = at::ones({2, 2}).requires_grad_();
  const auto dtype_of_square = [&] { return at::matmul(weight, weight).scalar_type(); };
  std::optional<AutocastState> bfloat;
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    bfloat = AutocastState::current();
  }
  const AutocastGuard autocast(at::kCPU, at::kHalf);
  EXPECT_EQ(dtype_of_square(), at::kHalf);
  {
    const AutocastStateGuard here(*bfloat);
    EXPECT_EQ(dtype_of_square(), at::kBFloat16);
  }
  std::async(std::launch::async, [&] {
    const AutocastStateGuard there(*bfloat);
    EXPECT_EQ(dtype_of_square(), at::kBFloat16);
  }).get();
  EXPECT_EQ(dtype_of_square(), at::kHalf);
  const AutocastStateGuard same(AutocastState::current());
  EXPECT_EQ(dtype_of_square(), at::kHalf);
}

TEST(AutocastStateTest, ReplacesWhatTheThreadHas) {
  const auto plain = AutocastState::current();
  OpPolicy policy = OpPolicy::built_in(at::kCPU);
  policy.set("matmul", CastPolicy::kFloat32);
  const AutocastGuard autocast(at::kCPU, at::kHalf, AutocastOptions().policy(policy));
  {
    const AutocastStateGuard off(plain);
    EXPECT_EQ(dtype_of_product(), at::kFloat);
    const AutocastGuard bf16(at::kCPU, at::kBFloat16);  // PyTorch's own list, since `plain` has no other
    EXPECT_EQ(dtype_of_product(), at::kBFloat16);
  }
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  EXPECT_EQ(dtype_of_product(), at::kFloat);
}

TEST(AutocastStateTest, AThreadIsAsItWasWhereverTheGuardFailed) {
  OpPolicy policy = OpPolicy::built_in(at::kCPU);
  policy.set("matmul", CastPolicy::kFloat32);
  std::optional<AutocastState> state;
  {
    const AutocastGuard autocast(at::kCPU, at::kHalf, AutocastOptions().policy(policy));
    const AutocastGuard cuda(at::kCUDA, at::kBFloat16, AutocastOptions().policy(OpPolicy::preset("cuda")));
    const ModuleScope scope("encoder", 3);
    state = AutocastState::current();
  }
  const AutocastGuard here(at::kXPU, at::kHalf, AutocastOptions().policy(OpPolicy()));
  int failures = 0;
  for (bool failed = true; failed; failures += failed ? 1 : 0) {
    failed = false;
    auto copy = *state;
    allocations_left = failures;  // one more each time
    try {
      const AutocastStateGuard guard(std::move(copy));
      allocations_left = -1;
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    allocations_left = -1;
    ASSERT_EQ(dtype_of_product(), at::kFloat) << "after failure " << failures;
    ASSERT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    ASSERT_TRUE(at::autocast::is_autocast_enabled(at::kXPU));
    ASSERT_EQ(ModuleScope::current_path(), "");
    ASSERT_EQ(at::autocast::increment_nesting(), 2) << "after failure " << failures;
    at::autocast::decrement_nesting();
  }
  EXPECT_GE(failures, 5) << "places where the guard may fail";
}

}  // namespace
}  // namespace mezzo
