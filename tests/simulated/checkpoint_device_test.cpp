#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/checkpoint.h"
#include "mezzo/graph/graphed_step.h"
#include "simulated/device_test.h"

/// Activation checkpointing on a device: its random numbers, and that nobody waits.

namespace mezzo::simulated {
namespace {

class CheckpointDeviceTest : public DeviceTest {
 protected:
  const at::Tensor weight = at::ones({4, 4}, device).requires_grad_();

  at::Tensor block(const at::Tensor& x) const { return at::dropout(at::linear(x, weight).sigmoid(), 0.5, true) * x; }
};

TEST_F(CheckpointDeviceTest, DrawsTheSameNumbersAndNeverWaits) {
  const auto train = [&](bool with_checkpoints) {
    torch::manual_seed(7);
    const auto x = at::full({64, 4}, 0.5, device).requires_grad_();
    weight.mutable_grad().reset();
    const Watch watch;
    at::Tensor y = x;
    {
      const AutocastGuard autocast(kType, at::kHalf);
      for (int layer = 0; layer < 3; ++layer) {
        y = with_checkpoints ? checkpoint([this](const at::Tensor& input) { return block(input); }, y) : block(y);
      }
    }
    y.to(at::kFloat).sum().backward();
    EXPECT_THAT(watch.host_syncs(), testing::IsEmpty());
    const auto later = at::rand({4}, weight.options().requires_grad(false));
    return std::vector<at::Tensor>{y.detach().cpu(), x.grad().cpu(), weight.grad().cpu(), later.cpu()};
  };
  const auto plain = train(false), thrifty = train(true);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(plain[i], thrifty[i])) << i;
  }
}

TEST_F(CheckpointDeviceTest, IsRecordedWithoutRandomNumbers) {
  const auto run = [&](bool recorded) {
    weight.mutable_grad().reset();
    GraphedStep step(
        device,
        [this](const std::vector<at::Tensor>& inputs) {
          weight.mutable_grad().reset();
          const auto y = checkpoint(
              CheckpointOptions().preserve_rng_state(false),
              [this](const at::Tensor& x) { return at::linear(x, weight).sigmoid(); }, inputs[0]);
          const auto loss = y.square().sum();
          loss.backward();
          return std::vector<at::Tensor>{loss.detach(), weight.grad()};
        },
        GraphedStepOptions().warmup_steps(1).enabled(recorded));
    std::vector<at::Tensor> outputs;
    for (int call = 0; call < 4; ++call) {
      for (const at::Tensor& output : step({at::full({8, 4}, 0.25 * call, device)})) {
        outputs.push_back(output.cpu().clone());
      }
    }
    EXPECT_EQ(step.was_replayed(), recorded);
    return outputs;
  };
  const auto eager = run(false), recorded = run(true);
  for (size_t i = 0; i < eager.size(); ++i) {
    EXPECT_TRUE(at::equal(eager[i], recorded[i])) << i;
  }
}

TEST_F(CheckpointDeviceTest, CannotBeRecordedWithRandomNumbers) {
  GraphedStep step(
      device,
      [this](const std::vector<at::Tensor>& inputs) {
        weight.mutable_grad().reset();
        checkpoint([this](const at::Tensor& x) { return block(x); }, inputs[0]).sum().backward();
        return std::vector<at::Tensor>{weight.grad()};
      },
      GraphedStepOptions().warmup_steps(1));
  step({at::ones({8, 4}, device)});
  EXPECT_THAT([&] { step({at::ones({8, 4}, device)}); },
              testing::ThrowsMessage<c10::Error>(
                  testing::HasSubstr("checkpoint: a graph cannot save the states of random-number generators; pass "
                                     "CheckpointOptions().preserve_rng_state(false) inside a GraphedStep")));
}

}  // namespace
}  // namespace mezzo::simulated
