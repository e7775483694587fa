#include "mezzo/amp/op_lists.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "amp/named_overflow.h"
#include "mezzo/amp/autocast_guard.h"

namespace mezzo {
namespace {

/// Overloads for named tensors, which LibTorch 2.13 dropped.
bool is_for_named_tensors(const std::string& op) {
  const std::string overload = op.substr(std::min(op.find('.'), op.size()));
  return overload.find("imname") != std::string::npos || overload.find("names_") != std::string::npos;
}

/// Without _cudnn_rnn, for which builds for CUDA have a separate kernel that casts the
/// weights, no entry of a list.
std::set<std::string> ops_with_kernel(c10::DispatchKey key) {
  std::set<std::string> ops;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (op && op->hasKernelForDispatchKey(key)) {
      ops.insert(c10::toString(name));
    }
  }
  ops.erase("aten::_cudnn_rnn");
  for (const auto op : ops_named_in_overflow_errors()) {  // by mezzo's kernels, which cast nothing
    ops.erase(std::string(op));
  }
  std::erase_if(ops, is_for_named_tensors);
  return ops;
}

std::map<std::string, CastPolicy> table_of(c10::DeviceType device_type) {
  std::map<std::string, CastPolicy> table;
  for (const auto& [op, policy] : autocast_ops(device_type)) {
    EXPECT_TRUE(table.emplace(op, policy).second) << op << " is listed twice";
  }
  return table;
}

std::set<std::string> names_of(const std::map<std::string, CastPolicy>& table) {
  std::set<std::string> names;
  for (const auto& [op, policy] : table) {
    names.insert(op);
  }
  return names;
}

TEST(OpListsTest, ListExactlyTheOpsThatTheDispatcherAutocasts) {
  if (TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR > 13) {
    GTEST_SKIP() << "newer ops have no known policy: LibTorch 2.13 is known, this is " << TORCH_VERSION;
  }
  using enum c10::DispatchKey;
  const std::map<c10::DeviceType, c10::DispatchKey> keys = {
      {c10::kCPU, AutocastCPU}, {c10::kCUDA, AutocastCUDA}, {c10::kXPU, AutocastXPU},
      {c10::kMPS, AutocastMPS}, {c10::kMTIA, AutocastMTIA}, {c10::kMAIA, AutocastMAIA},
      {c10::kHPU, AutocastHPU}, {c10::kIPU, AutocastIPU},   {c10::kXLA, AutocastXLA}};
  std::map<c10::DeviceType, size_t> counts;
  for (const auto& [device_type, key] : keys) {
    const auto names = names_of(table_of(device_type));
    EXPECT_EQ(names, ops_with_kernel(key)) << c10::DeviceTypeName(device_type);
    counts[device_type] = names.size();
  }
  if (TORCH_VERSION_MINOR == 13) {
    EXPECT_EQ(counts, (std::map<c10::DeviceType, size_t>{{c10::kCPU, 127},
                                                         {c10::kCUDA, 119},
                                                         {c10::kXPU, 117},
                                                         {c10::kMPS, 95},
                                                         {c10::kMTIA, 117},
                                                         {c10::kMAIA, 117},
                                                         {c10::kHPU, 0},
                                                         {c10::kIPU, 0},
                                                         {c10::kXLA, 0}}));
  }
}

/// As aten/src/ATen/autocast_mode.cpp has them.
TEST(OpListsTest, NameThePoliciesOfMpsAndXpu) {
  const auto mps = table_of(c10::kMPS), xpu = table_of(c10::kXPU);
  EXPECT_EQ(mps.at("aten::softmax.int"), CastPolicy::kFloat32);
  EXPECT_EQ(xpu.at("aten::softmax.int"), CastPolicy::kFloat32SetOptDtype);
  EXPECT_EQ(mps.at("aten::batch_norm"), CastPolicy::kFloat32);
  EXPECT_EQ(mps.at("aten::_mps_convolution"), CastPolicy::kLowerPrecision);
  EXPECT_FALSE(mps.contains("aten::rms_norm"));
}

TEST(OpListsTest, CountEachPolicyAsPyTorchDoes) {
  const auto count = [](c10::DeviceType device_type) {
    std::map<CastPolicy, int> counts;
    for (const auto& entry : autocast_ops(device_type)) {
      ++counts[entry.policy];
    }
    return counts;
  };
  using P = CastPolicy;
  EXPECT_EQ(count(c10::kCPU), (std::map<P, int>{{P::kLowerPrecision, 24}, {P::kFloat32, 100}, {P::kPromote, 3}}));
  EXPECT_EQ(count(c10::kCUDA), (std::map<P, int>{{P::kLowerPrecision, 35},
                                                 {P::kFloat32, 59},
                                                 {P::kFloat32SetOptDtype, 11},
                                                 {P::kFloat32AppendDtype, 2},
                                                 {P::kPromote, 11},
                                                 {P::kBanned, 1}}));
}

TEST(OpListsTest, RefuseADeviceTypeWithoutAutocastByName) {
  try {
    autocast_ops(c10::kMeta);
    FAIL() << "meta accepted";
  } catch (const c10::ValueError& error) {
    EXPECT_STREQ(error.what_without_backtrace(),
                 "autocast_ops: device type meta has no autocast, so it has no op list.");
  }
}

TEST(OpListsTest, SpellPoliciesAsPyTorchDoes) {
  EXPECT_EQ(to_string(CastPolicy::kLowerPrecision), "lower_precision_fp");
  EXPECT_EQ(to_string(CastPolicy::kFloat32AppendDtype), "fp32_append_dtype");
}

/// An op on float32 and on bfloat16 arguments of shape [3, 3], under bfloat16 autocast on the CPU.
struct Probe {
  std::string op;
  std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)> run;
};

TEST(OpListsTest, NameThePolicyThatOpsFollowOnTheCpu) {
  const std::vector<Probe> probes = {
      {"aten::mm", [](auto& a, auto& b) { return a.mm(b); }},
      {"aten::matmul", [](auto& a, auto& b) { return torch::matmul(a, b); }},
      {"aten::linear", [](auto& a, auto& b) { return torch::linear(a, b); }},
      {"aten::addmm", [](auto& a, auto& b) { return torch::addmm(a, a, b); }},
      {"aten::bmm", [](auto& a, auto& b) { return torch::bmm(a.unsqueeze(0), b.unsqueeze(0)); }},
      {"aten::conv1d", [](auto& a, auto& b) { return torch::conv1d(a.unsqueeze(0), b.unsqueeze(2)); }},
      {"aten::linalg_vecdot", [](auto& a, auto& b) { return torch::linalg_vecdot(a, b); }},
      {"aten::scaled_dot_product_attention",
       [](auto& a, auto& b) {
         const auto keys = b.unsqueeze(0);
         return torch::scaled_dot_product_attention(a.unsqueeze(0), keys, keys);
       }},
      {"aten::mse_loss", [](auto& a, auto& b) { return torch::mse_loss(a, b); }},
      {"aten::l1_loss", [](auto& a, auto& b) { return torch::l1_loss(a, b); }},
      {"aten::cdist", [](auto& a, auto& b) { return torch::cdist(a, b); }},
      {"aten::trace", [](auto& a, auto&) { return a.trace(); }},
      {"aten::prod", [](auto& a, auto&) { return a.prod(); }},
      {"aten::cat", [](auto& a, auto& b) { return torch::cat({a, b}); }},
      {"aten::stack", [](auto& a, auto& b) { return torch::stack({a, b}); }},
  };
  const auto table = table_of(c10::kCPU);
  const auto full = torch::ones({3, 3});
  const auto low = full.to(torch::kBFloat16);
  AutocastGuard autocast(torch::kCPU, torch::kBFloat16);
  for (const auto& [op, run] : probes) {
    const auto policy = table.at(op);
    const bool lowers = policy == CastPolicy::kLowerPrecision;
    const bool raises = policy == CastPolicy::kFloat32;
    EXPECT_EQ(run(full, full).scalar_type(), lowers ? torch::kBFloat16 : torch::kFloat) << op;
    EXPECT_EQ(run(low, low).scalar_type(), raises ? torch::kFloat : torch::kBFloat16) << op;
    EXPECT_EQ(run(low, full).scalar_type(), lowers ? torch::kBFloat16 : torch::kFloat) << op;
  }
}

}  // namespace
}  // namespace mezzo
