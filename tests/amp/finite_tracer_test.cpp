#include "mezzo/amp/finite_tracer.h"

#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/cuda.h>

#include <limits>
#include <stdexcept>
#include <thread>

#include "mezzo/amp/module_scope.h"

// tests/python/amp/test_finite_tracer.py tests its findings in ops of all kinds. The cases here
// need C++.

namespace mezzo {
namespace {

using testing::HasSubstr;

/// x * 2 forward; backward divides by zero.
struct DividesByZero : torch::autograd::Function<DividesByZero> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradient) {
    return {gradient[0] / at::zeros_like(gradient[0])};
  }
};

/// Writes NaN to memory, past the dispatcher.
struct WritesNan : torch::autograd::Function<WritesNan> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return filled(x); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradient) {
    return {filled(gradient[0])};
  }
  static at::Tensor filled(const at::Tensor& like) {
    auto out = at::empty_like(like);
    std::fill_n(out.mutable_data_ptr<float>(), out.numel(), std::numeric_limits<float>::quiet_NaN());
    return out;
  }
};

TEST(FiniteTracerTest, PlacesABackwardOfACustomFunctionInItsModule) {
  const auto x = at::ones({3}).requires_grad_();
  const FiniteTracer tracer;
  at::Tensor y;
  {
    const ModuleScope scope("sneaky", 2);
    y = DividesByZero::apply(x);
  }
  {
    const ModuleScope scope("head");
    y = (y * 3).sum();
  }
  y.backward();
  const auto first = tracer.first().value();
  EXPECT_EQ(first.op, "aten::div.Tensor");
  EXPECT_TRUE(first.in_backward && first.produced_here);
  EXPECT_EQ(first.module, "sneaky.2");
  EXPECT_EQ(first.forward_op, "");
  EXPECT_THAT(first.backward_node, HasSubstr("DividesByZero"));
}

TEST(FiniteTracerTest, SaysThatAnOpReceivedWhatAKernelOutsideAtenMade) {
  const auto x = at::ones({3}).requires_grad_();
  {
    const FiniteTracer tracer;
    const auto y = WritesNan::apply(x) * 2;
    const auto first = tracer.first().value();
    EXPECT_FALSE(first.produced_here);
    EXPECT_EQ(first.op, "aten::mul.Tensor");
  }
  const auto y = at::where(at::ones({3}, at::kBool), x.detach(), WritesNan::apply(x)).sum();  // only backward is bad
  const FiniteTracer tracer;
  y.backward();
  EXPECT_FALSE(tracer.first().value().produced_here);
  EXPECT_THAT(tracer.first()->op, HasSubstr("AccumulateGrad")) << "where the gradient reaches a parameter";
}

TEST(FiniteTracerTest, TracesThreadsThatTakeOverItsThreadLocalStateAsAutogradsDo) {
  const FiniteTracer tracer;
  std::thread([] { at::zeros({1}).log(); }).join();
  EXPECT_FALSE(tracer.first().has_value()) << "a thread of its own";
  const at::ThreadLocalState state;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    at::zeros({1}).log();
  }).join();
  EXPECT_EQ(tracer.first().value().op, "aten::log");
}

TEST(FiniteTracerTest, OutlivesNothingThatItMustNot) {
  auto tracer = std::make_unique<FiniteTracer>();
  const auto x = at::ones({1}).requires_grad_();
  x.register_hook([&](const at::Tensor& gradient) {
    tracer.reset();  // within a backward node that it has seen begin
    return gradient;
  });
  (x * 2).backward();
  EXPECT_EQ(x.grad().item<float>(), 2);
}

TEST(FiniteTracerTest, ACallbackThatThrowsAtANodeLeavesNoNodeBehind) {
  {
    const auto x = at::ones({3}).requires_grad_();
    const auto y = x * 2, bad = at::full({3}, std::numeric_limits<float>::infinity());
    const FiniteTracer tracer(
        FiniteTracerOptions().on_first([](const NonFiniteOp&) { throw std::runtime_error("lost in LibTorch"); }));
    (*y.grad_fn())({bad});  // without the engine, whose end would tidy up
    EXPECT_THAT(tracer.first().value().op, HasSubstr("MulBackward"));
  }
  const FiniteTracer tracer;
  at::zeros({1}).log();
  EXPECT_FALSE(tracer.first().value().in_backward);
}

TEST(FiniteTracerTest, FindsBackwardOverflowsOnTheThreadsOfCuda) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no CUDA device: autograd runs on the caller's thread";
  }
  const auto x = at::zeros({3}, at::kCUDA).requires_grad_();
  const FiniteTracer tracer;
  x.sqrt().sum().backward();
  EXPECT_THROW(tracer.check(), c10::Error);
}

}  // namespace
}  // namespace mezzo
