#include "mezzo/graph/graphed_step.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <future>
#include <limits>
#include <thread>

#include "graph/device_graph.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/adam.h"

/// On devices without graphs, and on a GPU. Elsewhere: simulated/graphed_step_device_test.cpp.

namespace mezzo {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

GraphedStep::Tensors doubled(const GraphedStep::Tensors& inputs) { return {inputs[0] * 2}; }

TEST(GraphedStepTest, RunsEagerlyOnACpuAndSaysSo) {
  GraphedStep step(at::kCPU, doubled);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(at::equal(step({at::full({2}, i)})[0], at::full({2}, 2 * i)));
    EXPECT_FALSE(step.was_replayed());
    EXPECT_EQ(step.eager_reason(), "there are no graphs for cpu");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "nobody expects one there";
  EXPECT_EQ(step.counts().eager, 6);
  EXPECT_EQ(step.counts().recorded, 0);
}

TEST(GraphedStepTest, ReturnsNoGraphOfAutograd) {
  const auto weight = at::ones({2}).requires_grad_();
  GraphedStep step(at::kCPU, [&](const auto& inputs) { return GraphedStep::Tensors{weight * inputs[0], {}}; });
  const auto outputs = step({at::ones({2})});
  EXPECT_FALSE(outputs[0].requires_grad());
  EXPECT_FALSE(outputs[1].defined());
}

TEST(GraphedStepTest, RefusesWhatCannotBe) {
  EXPECT_THAT([] { GraphedStep(at::kCPU, {}); }, ThrowsMessage<c10::ValueError>(HasSubstr("no step to call")));
  EXPECT_THAT([] { GraphedStep(at::kCPU, doubled, GraphedStepOptions().warmup_steps(0)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("warmup_steps must be at least 1, got 0")));
  EXPECT_THAT([] { GraphedStep(at::kCPU, doubled, GraphedStepOptions().max_graphs(0)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("max_graphs must be at least 1, got 0")));
  GraphedStep step(at::kCPU, doubled);
  EXPECT_THAT([&] { step({at::ones({2}).requires_grad_()}); },
              ThrowsMessage<c10::ValueError>(HasSubstr("input 0 requires a gradient")));
}

/// The node of autograd that takes a gradient back through the cast of a weight.
const torch::autograd::Node* cast_of(const at::Tensor& x, const at::Tensor& weight) {
  return x.mm(weight).grad_fn()->next_edge(1).function.get();
}

/// Autocast casts a weight once in a region and thread, whatever steps other threads take meanwhile.
TEST(GraphedStepTest, LeavesTheCastsOfOtherThreadsAlone) {
  std::promise<void> is_cast, goes_on;
  bool is_kept = false;
  std::thread other([&] {
    const auto x = at::ones({2, 2}), weight = at::ones({2, 2}).requires_grad_();
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    const auto y = x.mm(weight);
    is_cast.set_value();
    goes_on.get_future().wait();
    is_kept = cast_of(x, weight) == y.grad_fn()->next_edge(1).function.get();
  });
  is_cast.get_future().wait();
  GraphedStep step(at::kCPU, doubled);
  step({at::ones({2})});
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    step({at::ones({2})});
    goes_on.set_value();
    other.join();
  }
  EXPECT_TRUE(is_kept);
}

/// Else a step inside a region would go by weights as they were before the last step.
TEST(GraphedStepTest, CastsWeightsAnewInARegionAroundTheCalls) {
  const auto x = at::ones({1, 2}), weight = at::ones({2, 2}).requires_grad_();
  GraphedStep step(at::kCPU, [&](const GraphedStep::Tensors& inputs) {
    at::Tensor y;
    {
      const AutocastGuard inner(at::kCPU, at::kBFloat16);
      y = inputs[0].mm(weight);
    }
    const at::NoGradGuard no_grad;
    weight.add_(1);
    return GraphedStep::Tensors{y.detach()};
  });
  for (const bool is_enabled : {true, false}) {
    const at::NoGradGuard no_grad;
    weight.fill_(1);
    const at::AutoGradMode grad(true);
    const AutocastGuard around(at::kCPU, at::kBFloat16, is_enabled);
    for (int i = 1; i <= 3; ++i) {
      EXPECT_EQ(step({x})[0][0][0].item<float>(), static_cast<float>(2 * i));
    }
  }
  const AutocastGuard after(at::kCPU, at::kBFloat16);
  EXPECT_EQ(cast_of(x, weight), cast_of(x, weight)) << "other regions keep casts as they did";
}

struct Trained {
  std::vector<at::Tensor> tensors;
  GraphedStepCounts counts;
};

/// Steps of two shapes in turn, two of which overflow.
Trained train(c10::Device device, bool graphed) {
  torch::manual_seed(1);
  torch::nn::Sequential model{torch::nn::Linear(16, 64), torch::nn::GELU(), torch::nn::Dropout(0.25),
                              torch::nn::Linear(64, 1)};
  model->to(device);
  AdamW optimizer(*model, AdamWOptions().lr(0.01).max_grad_norm(1));
  GradScaler scaler(GradScalerOptions().init_scale(1024).growth_interval(5));
  GraphedStep step(
      device,
      [&](const GraphedStep::Tensors& inputs) {
        optimizer.zero_grad();
        at::Tensor loss;
        {
          const AutocastGuard autocast(device.type(), at::kHalf);
          loss = (model->forward(inputs[0]).to(at::kFloat) - 1).square().mean() * inputs[1];
        }
        scaler.scale(loss).backward();
        const auto found_inf = scaler.step(optimizer).found_inf();
        scaler.update();
        return GraphedStep::Tensors{loss, found_inf, scaler.scale_tensor().clone()};
      },
      GraphedStepOptions().enabled(graphed));
  Trained trained;
  for (int i = 0; i < 24; ++i) {
    const auto x = at::randn({i % 3 == 0 ? 32 : 48, 16});
    const auto factor = at::full({}, i == 4 || i == 17 ? std::numeric_limits<float>::infinity() : 1.0f);
    for (const at::Tensor& output : step({x, factor})) {
      trained.tensors.push_back(output.nan_to_num().cpu());
    }
  }
  for (const at::Tensor& parameter : model->parameters()) {
    trained.tensors.push_back(parameter.detach().cpu());
  }
  for (const auto& [name, tensor] : optimizer.state_dict()) {
    trained.tensors.push_back(tensor.cpu());
  }
  trained.counts = step.counts();
  return trained;
}

void expect_equal(const Trained& mine, const Trained& right) {
  ASSERT_EQ(mine.tensors.size(), right.tensors.size());
  for (size_t i = 0; i < right.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(mine.tensors[i], right.tensors[i])) << i;
  }
}

TEST(GraphedStepTest, GivesTheBitsOfEagerStepsWhereItIsEager) {
  const auto eager = train(at::kCPU, /*graphed=*/false), graphed = train(at::kCPU, /*graphed=*/true);
  EXPECT_EQ(graphed.counts.eager, 24);
  expect_equal(graphed, eager);
}

/// The tests of the simulated accelerator, on a GPU.
class GraphedStepCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) {
      GTEST_SKIP() << "no CUDA device";
    }
    if (!make_device_graphs(device)) {
      GTEST_SKIP() << "built without CUDA graphs";
    }
  }

  const c10::Device device{at::kCUDA, 0};
};

TEST_F(GraphedStepCudaTest, GivesTheBitsOfEagerSteps) {
  const auto eager = train(device, /*graphed=*/false), graphed = train(device, /*graphed=*/true);
  EXPECT_EQ(graphed.counts.recorded, 2);
  EXPECT_EQ(graphed.counts.replayed, 18);
  expect_equal(graphed, eager);
}

TEST_F(GraphedStepCudaTest, AStepThatWaitsIsAnErrorAfterWhichAllGoesOn) {
  const auto weight = at::ones({2}, device);
  bool reads = true;
  GraphedStep step(device, [&](const GraphedStep::Tensors& inputs) {
    weight.add_(at::rand({2}, device) + inputs[0]);
    if (reads) {
      weight.sum().item<float>();
    }
    return GraphedStep::Tensors{weight.sum()};
  });
  const auto x = at::ones({1});
  for (int i = 0; i < 3; ++i) {
    step({x});
  }
  const auto before = weight.clone();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { step({x}); }, ThrowsMessage<c10::Error>(HasSubstr("GraphedStep: the step cannot be recorded: ")));
  }
  EXPECT_TRUE(at::equal(weight, before));
  EXPECT_EQ(at::rand({2}, device).numel(), 2);
  reads = false;
  EXPECT_GE(step({x})[0].item<float>(), before.sum().item<float>() + 2);
  EXPECT_TRUE(step.was_replayed());
}

TEST(DeviceGraphTest, CpusHaveNone) { EXPECT_EQ(make_device_graphs(at::kCPU), nullptr); }

}  // namespace
}  // namespace mezzo
