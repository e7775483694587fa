#include "mezzo/amp/cpu_half_compute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/utils/rnn.h>
#include <torch/types.h>

#include <limits>
#include <tuple>
#include <vector>

#include "mezzo/amp/autocast_guard.h"

namespace mezzo {
namespace {

class CpuHalfComputeTest : public testing::TestWithParam<at::ScalarType> {};

double epsilon(at::ScalarType dtype) { return dtype == at::kHalf ? 0x1p-10 : 0x1p-7; }

/// Rounds once: the error of each element is half an ulp of the exact product of the rounded
/// inputs, plus float32's own.
void expect_rounded_once(const at::Tensor& product, const at::Tensor& exact, at::ScalarType dtype) {
  ASSERT_EQ(product.scalar_type(), dtype);
  const auto error = (product.to(at::kDouble) - exact).abs();
  const auto bound = exact.abs() * (0.5 * epsilon(dtype)) + 1e-4;
  EXPECT_TRUE(error.le(bound).all().item<bool>()) << (error - bound).max();
}

TEST_P(CpuHalfComputeTest, RoundsAFloat32ProductOnce) {
  const CpuHalfCompute fast;
  const auto a = at::randn({33, 70}).to(GetParam()), b = at::randn({70, 21}).to(GetParam());
  const auto bias = at::randn({21}).to(GetParam());
  const auto x = a.to(at::kDouble), y = b.to(at::kDouble);
  expect_rounded_once(a.mm(b), x.mm(y), GetParam());
  expect_rounded_once(at::addmm(bias, a, b, 2, 3), bias.to(at::kDouble) * 2 + x.mm(y) * 3, GetParam());
  expect_rounded_once(at::linear(a, b.t(), bias), x.mm(y) + bias.to(at::kDouble), GetParam());
  const auto batch = at::randn({4, 9, 70}).to(GetParam()), sum = at::randn({4, 9, 21}).to(GetParam());
  const auto right = b.expand({4, 70, 21});
  expect_rounded_once(batch.bmm(right), batch.to(at::kDouble).bmm(right.to(at::kDouble)), GetParam());
  expect_rounded_once(at::baddbmm(sum, batch, right),
                      sum.to(at::kDouble) + batch.to(at::kDouble).bmm(right.to(at::kDouble)), GetParam());
}

TEST_P(CpuHalfComputeTest, OverflowsAsTheDtypeDoesNotAsTheAccumulatorWould) {
  const CpuHalfCompute fast;
  const auto large = at::full({1, 4}, GetParam() == at::kHalf ? 30000.0 : 2e38).to(GetParam());
  const auto ones = at::ones({4, 1}).to(GetParam());
  EXPECT_TRUE(large.mm(ones).isinf().item<bool>());
  const auto alternating = at::tensor({1.0F, -1.0F, 1.0F, -1.0F}).to(GetParam()).view({4, 1});
  EXPECT_EQ(large.mm(alternating).item<float>(), 0);
}

TEST_P(CpuHalfComputeTest, RunsForwardAndBackward) {
  const CpuHalfCompute fast;
  auto a = at::randn({8, 16}).to(GetParam()).requires_grad_(), b = at::randn({16, 4}).to(GetParam()).requires_grad_();
  const auto weight = at::randn({8, 4}).to(GetParam());
  const auto gradients = torch::autograd::grad({a.mm(b)}, {a, b}, {weight});
  expect_rounded_once(gradients[0], weight.to(at::kDouble).mm(b.detach().to(at::kDouble).t()), GetParam());
  expect_rounded_once(gradients[1], a.detach().to(at::kDouble).t().mm(weight.to(at::kDouble)), GetParam());
}

INSTANTIATE_TEST_SUITE_P(BothHalves, CpuHalfComputeTest, testing::Values(at::kHalf, at::kBFloat16));

/// A layer of `Rnn`, its input and its gradients, in some precision.
template <class Rnn>
struct RnnRun {
  template <class Options>
  RnnRun(const Options& options, bool is_packed) : is_packed_(is_packed) {
    torch::manual_seed(0);
    rnn = Rnn(options);
    x = at::randn({5, 3, 8});  // [batch, time] or [time, batch], and features
    const at::NoGradGuard no_grad;
    for (auto& parameter : rnn->parameters()) {
      parameter.copy_(parameter.to(at::kHalf));
    }
    x = x.to(at::kHalf).to(at::kFloat);
  }

  /// The output, and the gradients of all parameters, as float64.
  std::vector<at::Tensor> run(at::ScalarType dtype) {
    rnn->zero_grad();
    at::Tensor output;
    {
      const AutocastGuard autocast(at::kCPU, dtype, dtype == at::kHalf);
      if (is_packed_) {
        const auto lengths = at::tensor({5, 4, 2});
        const auto packed = torch::nn::utils::rnn::pack_padded_sequence(x.to(type()), lengths);
        output = std::get<0>(rnn->forward_with_packed_input(packed)).data();
      } else {
        output = std::get<0>(rnn->forward(x.to(type())));
      }
    }
    output.to(at::kDouble).square().sum().backward();
    std::vector<at::Tensor> results{output.detach().to(at::kDouble)};
    for (const auto& parameter : rnn->parameters()) {
      results.push_back(parameter.grad().to(at::kDouble));
    }
    return results;
  }

  at::ScalarType type() const { return rnn->parameters().front().scalar_type(); }

  Rnn rnn{nullptr};
  at::Tensor x;
  bool is_packed_;
};

/// Under autocast in float16, against float64 on the same weights and inputs.
template <class Rnn, class Options>
void expect_to_train_in_half(const Options& base) {
  for (const bool bidirectional : {false, true}) {
    for (const bool batch_first : {false, true}) {
      for (const bool is_packed : {false, true}) {
        if (is_packed && batch_first) {
          continue;
        }
        auto options = base;
        options.num_layers(2).bidirectional(bidirectional).batch_first(batch_first);
        RnnRun<Rnn> run(options, is_packed);
        std::vector<at::Tensor> half;
        {
          const CpuHalfCompute fast;
          half = run.run(at::kHalf);
        }
        run.rnn->to(at::kDouble);
        const auto exact = run.run(at::kFloat);
        ASSERT_EQ(half.size(), exact.size());
        for (size_t i = 0; i < half.size(); ++i) {
          // Five steps of two layers round activations and gradients, to 2^-11 each.
          EXPECT_LE((half[i] - exact[i]).norm().template item<double>(),
                    0x1p-7 * exact[i].norm().template item<double>())
              << run.rnn->name() << ' ' << i << (bidirectional ? " bidirectional" : "")
              << (batch_first ? " batch_first" : "") << (is_packed ? " packed" : "");
        }
      }
    }
  }
}

TEST(CpuHalfComputeRnnTest, LstmGruAndRnnTrainUnderAutocast) {
  expect_to_train_in_half<torch::nn::LSTM>(torch::nn::LSTMOptions(8, 16));
  expect_to_train_in_half<torch::nn::GRU>(torch::nn::GRUOptions(8, 16));
  expect_to_train_in_half<torch::nn::RNN>(torch::nn::RNNOptions(8, 16));
}

TEST(CpuHalfComputeRnnTest, AnLstmLayerIsRoundedOnce) {
  const auto draw = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kHalf); };
  const std::vector<at::Tensor> weights{draw({64, 8}), draw({64, 16}), draw({64}), draw({64})};
  const auto x = draw({5, 3, 8}), h = draw({1, 3, 16}), c = draw({1, 3, 16});
  const auto lstm = [&](at::ScalarType dtype) {
    std::vector<at::Tensor> parameters;
    for (const auto& weight : weights) {
      parameters.push_back(weight.to(dtype));
    }
    return at::lstm(x.to(dtype), {h.to(dtype), c.to(dtype)}, parameters, true, 1, 0, false, false, false);
  };
  const auto exact = lstm(at::kDouble);
  const CpuHalfCompute fast;
  const AutocastGuard autocast(at::kCPU, at::kHalf);
  const auto rounded = lstm(at::kFloat);  // as a model has its weights under autocast
  expect_rounded_once(std::get<0>(rounded), std::get<0>(exact), at::kHalf);
  expect_rounded_once(std::get<1>(rounded), std::get<1>(exact), at::kHalf);
  expect_rounded_once(std::get<2>(rounded), std::get<2>(exact), at::kHalf);
}

TEST(CpuHalfComputeScopeTest, LeavesOtherDtypesErrorsAndTheBuiltInKernelsAsTheyWere) {
  const auto a = at::randn({5, 6}), b = at::randn({6, 7});
  const auto half = a.to(at::kHalf), half_b = b.to(at::kHalf);
  const auto before = a.mm(b), half_before = half.mm(half_b);
  {
    const CpuHalfCompute outer;
    {
      const CpuHalfCompute inner;
    }
    EXPECT_TRUE(at::equal(a.mm(b), before));
    EXPECT_THROW(half.mm(b), c10::Error) << "mixed dtypes stay an error";
    EXPECT_THROW(half.mm(half), c10::Error) << "mismatched shapes stay an error";
    expect_rounded_once(half.mm(half_b), half.to(at::kDouble).mm(half_b.to(at::kDouble)), at::kHalf);
  }
  EXPECT_TRUE(at::equal(half.mm(half_b), half_before));
}

}  // namespace
}  // namespace mezzo
