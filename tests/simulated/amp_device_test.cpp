#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "amp/named_overflow.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/custom_function.h"
#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/losses.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/amp/op_policy.h"
#include "simulated/device_test.h"

/// Autocast, policies, logs, the tracer of NaN, master weights and losses on a device:
/// which of them wait for it.

namespace mezzo::simulated {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class AmpDeviceTest : public DeviceTest {
 protected:
  const at::Tensor weight = at::ones({4, 4}, device).requires_grad_();
  const at::Tensor x = at::ones({2, 4}, device);

  /// Some ops of every kind of line, in forward and backward.
  at::Tensor run() const {
    const auto y = at::linear(x, weight).softmax(1);
    const auto loss = at::cat({y, x}).sum() + at::addcmul(y, x, y).norm() + at::mse_loss(y, x);
    loss.backward();
    return loss.detach();
  }
};

TEST_F(AmpDeviceTest, AutocastFollowsTheListForAccelerators) {
  const Watch watch;
  {
    const AutocastGuard autocast(kType, at::kBFloat16);
    EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kBFloat16);
    EXPECT_EQ(at::linear(x, weight).softmax(1).scalar_type(), at::kFloat);
    {
      const auto off = AutocastGuard::disabled(kType);
      EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kFloat);
    }
    EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kFloat);
  const AutocastGuard for_cpus(at::kCPU, at::kBFloat16);
  EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kFloat) << "a region for another device type";
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
}

TEST_F(AmpDeviceTest, TheOpListIsWhatTheBackendRegisters) {
  std::set<std::string> registered, listed;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (const auto op = dispatcher.findOp(name);
        op && op->hasKernelForDispatchKey(c10::DispatchKey::AutocastPrivateUse1)) {
      registered.insert(c10::toString(name));
    }
  }
  for (const auto op : ops_named_in_overflow_errors()) {  // by mezzo's kernels, which cast nothing
    registered.erase(std::string(op));
  }
  for (const auto& entry : autocast_ops(kType)) {
    listed.insert(entry.op);
  }
  EXPECT_EQ(listed, registered);
  EXPECT_GT(listed.size(), 100);
}

TEST_F(AmpDeviceTest, PoliciesAndLogsWaitForNothingAndSayTheSame) {
  at::Tensor built_in, by_policy;
  CastLog of_built_in, of_policy;
  const auto run_with = [&](CastLog& log, const std::optional<OpPolicy>& policy) {
    const Watch watch;
    const AutocastGuard autocast(kType, at::kHalf, AutocastOptions().log(&log).policy(policy));
    const auto loss = run();
    EXPECT_THAT(watch.host_syncs(), IsEmpty());
    return loss;
  };
  built_in = run_with(of_built_in, std::nullopt);
  by_policy = run_with(of_policy, OpPolicy::built_in(kType));
  EXPECT_THAT(of_built_in.entries(), SizeIs(testing::Ge(2)));
  EXPECT_EQ(of_built_in.to_json(), of_policy.to_json());
  EXPECT_TRUE(at::equal(built_in, by_policy));
}

TEST_F(AmpDeviceTest, ADryRunDrawsNoNumberOfTheDevice) {
  CastLog log;
  torch::manual_seed(4);
  const auto before = at::rand({3}, device), there = at::rand({3}, other_device);
  torch::manual_seed(4);
  log.dry_run(kType, at::kHalf, [&] {
    at::dropout(at::linear(x, weight), 0.5, true);
    at::dropout(at::ones({3}, other_device), 0.5, true);
  });
  EXPECT_TRUE(at::equal(before, at::rand({3}, device)));
  EXPECT_TRUE(at::equal(there, at::rand({3}, other_device)));
  EXPECT_THAT(log.entries(), SizeIs(testing::Ge(1)));
}

TEST_F(AmpDeviceTest, FunctionsOfOnesOwnWaitForNothing) {
  const auto product = autocast_function("devices::product", CastPolicy::kLowerPrecision, kType,
                                         [](const at::Tensor& a, const at::Tensor& b) { return a.matmul(b); });
  const Watch watch;
  const AutocastGuard autocast(kType, at::kHalf);
  EXPECT_EQ(product(x, weight).scalar_type(), at::kHalf);
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
}

TEST_F(AmpDeviceTest, TheTracerFindsWhatTurnedToNaN) {
  const auto zero = at::zeros({4}, device);
  const FiniteTracer tracer;
  EXPECT_FALSE(tracer.first());
  const auto bad = (x / zero).log().sum();
  const auto first = tracer.first().value();
  EXPECT_EQ(first.op, "aten::div.Tensor");
  EXPECT_THROW(tracer.check(), c10::Error);
}

TEST_F(AmpDeviceTest, MasterWeightsWaitOnlyToCheckValues) {
  weight.detach().fill_(1 / 3.0);
  std::optional<MasterWeights> masters;
  const auto bias = at::ones({4}, device).requires_grad_(), far = at::ones({4}, other_device).requires_grad_();
  const Watch watch;
  masters.emplace(std::vector<NamedParameter>{{"weight", weight, {}}, {"bias", bias, {}}, {"far", far, {}}}, at::kHalf);
  EXPECT_THAT(watch.host_syncs(), SizeIs(1)) << "of all together";
  EXPECT_EQ(weight.scalar_type(), at::kHalf);
  const Watch later;
  for (int i = 0; i < 2; ++i) {
    at::linear(x.to(at::kHalf), weight).sum().backward();
    masters->accumulate_gradients();
  }
  const auto master = masters->parameters().at(0);
  {
    const at::NoGradGuard no_grad;
    master.add_(1);
  }
  masters->copy_to_model();
  const auto state = masters->state_dict();
  EXPECT_THAT(later.host_syncs(), IsEmpty());
  EXPECT_TRUE(at::equal(master.grad().cpu(), at::full({4, 4}, 4.0f)));
  EXPECT_TRUE(at::equal(weight, master.to(at::kHalf)));
  auto loaded = state;
  loaded["weight"] = at::ones({4, 4}, device);
  const Watch loading;
  masters->load_state_dict(loaded);
  EXPECT_THAT(loading.host_syncs(), SizeIs(1)) << "of all together";
  const Watch last;
  masters->to_float32();
  EXPECT_THAT(last.host_syncs(), IsEmpty());
  EXPECT_TRUE(at::equal(weight.detach().cpu(), at::ones({4, 4})));
  const auto small = at::ones({2}, device).requires_grad_(), large = at::full({2}, 1e6f, device).requires_grad_();
  try {
    const MasterWeights too_large({{"small", small, {}}, {"large", large, {}}}, at::kHalf);
    ADD_FAILURE() << "nothing thrown";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("parameter large has values up to 1e+06"));
  }
  EXPECT_EQ(small.scalar_type(), at::kFloat);
}

TEST_F(AmpDeviceTest, LossesWaitForNothing) {
  const auto probabilities = at::full({3}, 0.25f, device).requires_grad_(), target = at::ones({3}, device);
  const auto logits = at::ones({2, 3}, device).to(at::kHalf), labels = at::ones({2}, logits.options().dtype(at::kLong));
  const Watch watch;
  const auto bce = mezzo::binary_cross_entropy(probabilities, target);
  const auto ce = mezzo::cross_entropy(logits, labels), log = clamped_log(probabilities);
  (bce + log.sum()).backward();
  EXPECT_THAT(watch.host_syncs(), IsEmpty());
  EXPECT_NEAR(bce.item<double>(), std::log(4), 1e-6);
  EXPECT_NEAR(ce.item<double>(), std::log(3), 1e-6);
  EXPECT_NEAR(log.sum().item<double>(), -3 * std::log(4), 1e-6);
}

}  // namespace
}  // namespace mezzo::simulated
