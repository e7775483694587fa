#include "mezzo/amp/cast_log.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <functional>
#include <map>
#include <vector>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/custom_function.h"

// That a log of PyTorch's lists says what a policy's says, op by op, is in
// tests/python/amp/test_op_policy.py.

namespace mezzo {
namespace {

/// A line of the built-in list, as LibTorch makes them.
at::Tensor in_float32(const at::Tensor& a, const at::Tensor& b) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return at::mm(at::autocast::cached_cast(at::kFloat, a, at::kCPU), at::autocast::cached_cast(at::kFloat, b, at::kCPU));
}

at::Tensor lowered(const at::Tensor& x) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return at::tanh(at::autocast::cached_cast(at::kHalf, x, at::kCPU));
}

at::Tensor with_dtype(const at::Tensor& x, int64_t dim, std::optional<at::ScalarType> dtype) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return at::softmax(x, dim, dtype.value_or(at::kFloat));
}

/// Another LibTorch's list: mm in float32, tanh lowered, softmax given a dtype, bmm not listed.
torch::Library other_list() {
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCPU, __FILE__, __LINE__);
  library.impl("mm", &in_float32);
  library.impl("tanh", &lowered);
  library.impl("softmax.int", &with_dtype);
  library.impl("bmm", torch::CppFunction::makeFallthrough());
  return library;
}

TEST(CastLogTest, FollowsTheBuiltInListWhereItIsNotMezzosTable) {
  const auto library = other_list();
  const auto half = at::randn({3, 3}, at::kHalf), full = at::randn({3, 3});
  const std::vector<std::function<at::Tensor()>> calls = {
      [&] { return half.mm(full); }, [&] { return full.tanh(); }, [&] { return half.softmax(0); },
      [&] { return full.unsqueeze(0).bmm(full.unsqueeze(0)); }, [&] { return at::mse_loss(half, half); }};
  const auto run = [&](CastLog* log) {
    const AutocastGuard autocast(at::kCPU, at::kHalf, AutocastOptions().log(log));
    std::vector<at::Tensor> results;
    for (const auto& call : calls) {
      results.push_back(call());
    }
    return results;
  };
  CastLog log;
  const auto with_log = run(&log), without = run(nullptr);
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(with_log[i].scalar_type(), without[i].scalar_type()) << i;
    EXPECT_TRUE(at::equal(with_log[i], without[i])) << i;
  }
  EXPECT_EQ(without[0].scalar_type(), at::kFloat) << "the list is the other one";
  EXPECT_EQ(without[3].scalar_type(), at::kFloat);

  std::map<std::string, CastLog::Entry> entries;
  for (const auto& entry : log.entries()) {
    EXPECT_TRUE(entries.emplace(entry.op, entry).second) << entry.op;
  }
  const auto expect = [&](const std::string& op, CastPolicy policy, at::ScalarType to, int64_t count, int64_t bytes) {
    ASSERT_TRUE(entries.contains(op)) << op;
    EXPECT_EQ(entries[op].policy, policy) << op;
    EXPECT_EQ(entries[op].to, to) << op;
    EXPECT_EQ(entries[op].count, count) << op;
    EXPECT_EQ(entries[op].bytes, bytes) << op;
  };
  expect("aten::mm", CastPolicy::kFloat32, at::kFloat, 1, 36);
  expect("aten::tanh", CastPolicy::kLowerPrecision, at::kHalf, 1, 18);
  expect("aten::softmax.int", CastPolicy::kFloat32SetOptDtype, at::kFloat, 1, 0);
  expect("aten::mse_loss", CastPolicy::kFloat32, at::kFloat, 2, 72);
  EXPECT_EQ(entries.size(), 4);
}

TEST(CastLogTest, TellsKeptCastsFromNewOnesAsPyTorchsCacheKeepsThem) {
  CastLog log;
  const auto weight = at::ones({2, 2}).requires_grad_(), x = at::ones({2, 2}, at::kHalf);
  const AutocastGuard autocast(at::kCPU, at::kHalf, AutocastOptions().log(&log));
  for (int i = 0; i < 3; ++i) {
    x.mm(weight);
  }
  weight.mm(weight);
  ASSERT_EQ(log.entries().size(), 1);
  EXPECT_EQ(log.entries()[0].count, 1);
  EXPECT_EQ(log.entries()[0].cached, 4);
  EXPECT_EQ(autocast_cache_size(), 0) << "they are PyTorch's to keep";
}

TEST(CastLogTest, HearsOfWrappedFunctionsAndKeepsTheirNumbers) {
  const auto product = autocast_function("test::logged", CastPolicy::kLowerPrecision, at::kCPU,
                                         [](const at::Tensor& a, const at::Tensor& b) { return a.mm(b); });
  CastLog log;
  const auto weight = at::ones({2, 2}).requires_grad_();
  const AutocastGuard autocast(at::kCPU, at::kHalf, AutocastOptions().log(&log));
  product(at::ones({2, 2}), weight);
  product(at::ones({2, 2}), weight);
  ASSERT_EQ(log.entries().size(), 1);
  EXPECT_EQ(log.entries()[0].op, "test::logged");
  EXPECT_EQ(log.entries()[0].count, 3);
  EXPECT_EQ(log.entries()[0].cached, 1);
}

TEST(CastLogTest, LeavesPoliciesInForce) {
  const auto x = at::ones({2, 2});
  const auto policy = OpPolicy::preset("cpu").set("mm", CastPolicy::kFloat32);
  const AutocastGuard with_policy(at::kCPU, at::kHalf, AutocastOptions().policy(policy));
  CastLog inner;
  const AutocastGuard with_log(at::kCPU, at::kHalf, AutocastOptions().log(&inner));
  EXPECT_EQ(x.mm(x).scalar_type(), at::kFloat) << "of the enclosing guard";
  EXPECT_EQ(at::bmm(x.unsqueeze(0), x.unsqueeze(0)).scalar_type(), at::kHalf);
  EXPECT_EQ(inner.entries().size(), 1);
}

}  // namespace
}  // namespace mezzo
