#include "mezzo/amp/checkpoint.h"

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/autocast_state.h"

namespace mezzo {
namespace {

using Tensors = std::vector<torch::Tensor>;

torch::nn::Sequential make_block(int64_t size) {
  return torch::nn::Sequential(torch::nn::Linear(size, 4 * size), torch::nn::Dropout(0.3),
                               torch::nn::Linear(4 * size, size));
}

torch::Tensor run(torch::nn::Sequential block, const torch::Tensor& x) { return x + torch::gelu(block->forward(x)); }

/// The output and all gradients of a step, of the input first.
struct Step {
  Tensors tensors;
  explicit Step(bool with_checkpoints, bool under_autocast) {
    torch::manual_seed(5);
    const auto input = torch::randn({6, 8}, torch::requires_grad());
    std::vector blocks{make_block(8), make_block(8), make_block(8)};
    blocks.push_back(blocks.front());  // a parameter with two uses
    torch::Tensor loss, x = input;
    {
      const AutocastGuard autocast(torch::kCPU, torch::kBFloat16, under_autocast);
      for (const auto& block : blocks) {
        x = with_checkpoints ? checkpoint(run, block, x) : run(block, x);
      }
      loss = x.square().sum();
    }
    torch::randn({9});  // the generator is elsewhere by now
    loss.backward();
    tensors = {x.detach(), torch::randn({3}), input.grad()};
    for (size_t i = 0; i < 3; ++i) {
      for (const torch::Tensor& parameter : blocks[i]->parameters()) {
        tensors.push_back(parameter.grad());
      }
    }
  }
};

TEST(CheckpointTest, GivesTheSameGradientsToTheBit) {
  for (const bool under_autocast : {false, true}) {
    const Step plain(false, under_autocast), thrifty(true, under_autocast);
    ASSERT_EQ(plain.tensors.size(), 3U + 12U);
    for (size_t i = 0; i < plain.tensors.size(); ++i) {
      EXPECT_TRUE(torch::equal(plain.tensors[i], thrifty.tensors[i])) << i << ", autocast " << under_autocast;
    }
  }
}

TEST(CheckpointTest, NeedsDropoutToBeTheSame) {
  const auto x = torch::ones({100}, torch::requires_grad());
  const auto drop = [](const torch::Tensor& input) { return torch::dropout(input * input, 0.5, true) * 3; };
  const auto y = checkpoint(CheckpointOptions().preserve_rng_state(false), drop, x);
  const auto z = checkpoint(drop, x);
  y.sum().backward();
  // The second call drew a new mask, so the gradients belong to another output.
  EXPECT_FALSE(torch::equal(x.grad(), 2 * y.detach()));
  x.mutable_grad().reset();
  z.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), 2 * z.detach()));
}

class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { live += size; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live = 0;
};

TEST(CheckpointTest, KeepsTheInputsAlone) {
  constexpr int64_t kRows = 512, kSize = 32, kBlocks = 8, kActivation = kRows * kSize * 4;
  const auto live_after_forward = [&](bool with_checkpoints) {
    auto x = torch::randn({kRows, kSize}, torch::requires_grad());
    const auto counter = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
    std::vector<torch::nn::Sequential> blocks;
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(make_block(kSize));
    }
    counter->live = 0;
    for (const auto& block : blocks) {
      x = with_checkpoints ? checkpoint(run, block, x) : run(block, x);
    }
    return counter->live;
  };
  EXPECT_GT(live_after_forward(false), kBlocks * 6 * kActivation);
  // Each block's output, which is the next one's input; and the states of the generator.
  EXPECT_LT(live_after_forward(true), kBlocks * (kActivation + 16'384));
}

TEST(CheckpointTest, TakesAndReturnsStructures) {
  const auto a = torch::full({2}, 2.0, torch::requires_grad()), b = torch::full({2}, 3.0, torch::requires_grad());
  const auto scale = torch::full({2}, 5.0, torch::requires_grad());  // captured
  const auto function = [&scale](const std::map<std::string, torch::Tensor>& named, const Tensors& list, int power,
                                 const std::string& name) {
    const auto product = named.at(name) * list[0] * scale;
    return std::tuple(product.pow(power), Tensors{product.exp(), torch::Tensor()}, 7);
  };
  const std::map<std::string, torch::Tensor> named{{"a", a}};
  const auto [power, list, number] = checkpoint(function, named, Tensors{b}, 2, std::string("a"));
  EXPECT_EQ(number, 7);
  EXPECT_FALSE(list[1].defined());
  power.sum().backward({}, /*retain_graph=*/true);
  EXPECT_EQ(a.grad()[0].item<float>(), 2 * 2.0F * 9 * 25);
  EXPECT_EQ(b.grad()[0].item<float>(), 2 * 3.0F * 4 * 25);
  EXPECT_EQ(scale.grad()[0].item<float>(), 2 * 5.0F * 36);
  const auto gradient = torch::autograd::grad({list[0].sum()}, {scale})[0];
  EXPECT_TRUE(torch::equal(gradient, list[0].detach() * 6));
}

/// A function that counts its calls.
struct Counted {
  int* calls;
  torch::Tensor operator()(const torch::Tensor& x) const {
    ++*calls;
    return x.sin().exp();
  }
};

TEST(CheckpointTest, GoesBackTwiceAndToSomeInputsAlone) {
  int calls = 0;
  const auto x = torch::randn({4}, torch::requires_grad()), w = torch::randn({4}, torch::requires_grad());
  const auto y = checkpoint([&](const torch::Tensor& input) { return Counted{&calls}(input)*w; }, x);
  const auto of_w = torch::autograd::grad({y.sum()}, {w}, {}, /*retain_graph=*/true)[0];
  const auto first = torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true)[0];
  const auto second = torch::autograd::grad({y.sum()}, {x})[0];
  const auto expected = (x.sin().exp() * x.cos() * w).detach();
  EXPECT_TRUE(torch::allclose(first, expected, 1e-6));
  EXPECT_TRUE(torch::equal(first, second));
  EXPECT_TRUE(torch::equal(of_w, x.sin().exp().detach()));
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {x}), c10::Error) << "the graph is gone";
  EXPECT_LE(calls, 4);
}

TEST(CheckpointTest, Nests) {
  int inner_calls = 0, outer_calls = 0;
  const auto x = torch::randn({4}, torch::kDouble).requires_grad_();
  const auto outer = [&](const torch::Tensor& input) {
    ++outer_calls;
    return checkpoint(Counted{&inner_calls}, input.square()).cos();
  };
  checkpoint(outer, x).sum().backward();
  EXPECT_EQ(outer_calls, 2);
  EXPECT_EQ(inner_calls, 3);
  const auto other = x.detach().requires_grad_();
  outer(other).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), other.grad()));
}

TEST(CheckpointTest, HasSecondDerivatives) {
  int calls = 0;
  const auto x = torch::randn({4}, torch::kDouble).requires_grad_();
  const auto second = [&](const torch::Tensor& y) {
    const auto first = torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.square().sum()}, {x})[0];
  };
  EXPECT_TRUE(torch::allclose(second(checkpoint(Counted{&calls}, x)), second(x.sin().exp())));
}

TEST(CheckpointTest, RunsTheFunctionAsTheFirstTime) {
  const auto x = torch::randn({4}, torch::requires_grad());
  std::vector<std::string> seen;
  const auto function = [&](const torch::Tensor& input) {
    seen.push_back(ModuleScope::current_path() + (at::autocast::is_autocast_enabled(torch::kCPU) ? " on " : " off ") +
                   c10::toString(at::autocast::get_autocast_dtype(torch::kCPU)));
    return input.sin();
  };
  torch::Tensor y;
  {
    const AutocastGuard autocast(torch::kCPU, torch::kHalf);
    const ModuleScope scope("layer", 3);
    y = checkpoint(function, x);
  }
  const AutocastGuard other(torch::kCPU, torch::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(seen, (std::vector<std::string>{"layer.3 on Half", "layer.3 on Half"}));
  EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
  EXPECT_EQ(ModuleScope::current_path(), "");

  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(function, x).requires_grad());
}

TEST(CheckpointTest, LetsHooksOfParametersSeeOneGradient) {
  const auto weight = torch::ones({4}, torch::requires_grad());
  int seen = 0;
  weight.register_hook([&](const torch::Tensor&) { ++seen; });
  checkpoint([&](const torch::Tensor& x) { return (x * weight).exp(); }, torch::ones({4})).sum().backward();
  EXPECT_EQ(seen, 1);
}

TEST(CheckpointTest, SaysWhereTheSecondCallDiffers) {
  const auto x = torch::randn({4}, torch::requires_grad());
  const auto message = [&](const std::function<torch::Tensor(const torch::Tensor&, int)>& function) -> std::string {
    int call = 0;
    try {
      checkpoint([&](const torch::Tensor& input) { return function(input, call++); }, x).sum().backward();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing thrown";
  };
  const std::string advice = ". It must compute the same in both calls: look for state that it changes.";
  EXPECT_EQ(message([](const torch::Tensor& input, int call) { return call == 0 ? input.exp() : input.exp().exp(); }),
            "checkpoint: the function saved 2 tensors for backward when it was called again. In the forward pass it "
            "saved 1" +
                advice);
  EXPECT_EQ(message([](const torch::Tensor& input, int call) { return call == 0 ? input.exp() : input + 1; }),
            "checkpoint: the function saved 0 tensors for backward when it was called again. In the forward pass it "
            "saved 1" +
                advice);
  EXPECT_EQ(
      message([](const torch::Tensor& input, int call) {
        return call == 0 ? input.exp() : input.slice(0, 0, 2).to(torch::kDouble).exp();
      }),
      "checkpoint: tensor 0 that backward needs has shape, dtype and device [2], Double, cpu when the function is "
      "called again. In the forward pass they were [4], Float, cpu" +
          advice);
  EXPECT_EQ(message([](const torch::Tensor& input, int) { return input.exp(); }), "nothing thrown");
}

TEST(CheckpointTest, RefusesATensorThatWasChangedInPlace) {
  const auto function = [](const torch::Tensor& x) {
    auto s = x.sigmoid();
    auto product = s * s;
    s.mul_(2);
    return product;
  };
  const auto x = torch::ones({3}, torch::requires_grad());
  EXPECT_THROW(function(x).sum().backward(), c10::Error) << "a plain call refuses it, too";
  const auto y = checkpoint(function, x);
  try {
    y.sum().backward();
    FAIL() << "wrong gradients";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("has been modified by an inplace operation"), std::string::npos)
        << error.what();
  }
}

TEST(CheckpointTest, RunsOnThreads) {
  std::vector<std::thread> threads;
  std::vector<torch::Tensor> gradients(4);
  const auto weight = torch::randn({8, 8}, torch::requires_grad());
  for (size_t i = 0; i < gradients.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto x = torch::full({8, 8}, 0.1, torch::requires_grad());
      auto y = x;
      for (int layer = 0; layer < 20; ++layer) {
        y = checkpoint([&](const torch::Tensor& input) { return torch::tanh(input.mm(weight)); }, y);
      }
      gradients[i] = torch::autograd::grad({y.sum()}, {x})[0];
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const torch::Tensor& gradient : gradients) {
    EXPECT_TRUE(torch::equal(gradient, gradients[0]));
  }
}

}  // namespace
}  // namespace mezzo
