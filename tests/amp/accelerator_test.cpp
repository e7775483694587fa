#include "mezzo/amp/accelerator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <limits>
#include <string>
#include <vector>

#include "mezzo/amp/master_weights.h"
#include "mezzo/optim/sgd.h"

namespace mezzo {
namespace {

namespace F = torch::nn::functional;

/// The same at every call.
torch::nn::Linear make_model() {
  torch::manual_seed(3);
  return torch::nn::Linear(4, 2);
}

std::vector<std::pair<at::Tensor, at::Tensor>> make_batches(int64_t count) {
  torch::manual_seed(5);
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int64_t i = 0; i < count; ++i) {
    batches.emplace_back(torch::randn({3, 4}), torch::randint(2, {3}, torch::kLong));
  }
  return batches;
}

at::Tensor loss_of(torch::nn::Linear& model, const std::pair<at::Tensor, at::Tensor>& batch) {
  return F::cross_entropy(model(batch.first).to(torch::kFloat), batch.second);
}

class AcceleratorDtypeTest : public testing::TestWithParam<at::ScalarType> {};

/// The loop by hand: LibTorch's own optimizer and clipping, autocast and scaler spelled out.
TEST_P(AcceleratorDtypeTest, GivesTheNumbersOfTheLoopByHand) {
  const auto dtype = GetParam();
  const auto batches = make_batches(6);
  constexpr int kParts = 2;
  constexpr double kMaxNorm = 0.2;

  auto by_hand = make_model();
  torch::optim::SGD sgd(by_hand->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  GradScaler scaler(GradScalerOptions().enabled(dtype == torch::kHalf));
  std::vector<double> losses, norms;
  for (size_t i = 0; i < batches.size(); ++i) {
    at::Tensor loss;
    {
      const AutocastGuard autocast(torch::kCPU, dtype, dtype != torch::kFloat);
      loss = loss_of(by_hand, batches[i]);
    }
    losses.push_back(loss.item<double>());
    scaler.scale(loss / kParts).backward();
    if (i % kParts == kParts - 1) {
      scaler.unscale_(sgd);
      norms.push_back(torch::nn::utils::clip_grad_norm_(by_hand->parameters(), kMaxNorm));
      scaler.step(sgd);
      scaler.update();
      sgd.zero_grad();
    }
  }

  auto model = make_model();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  Accelerator accelerator(
      optimizer, AcceleratorOptions().dtype(dtype).gradient_accumulation_steps(kParts).max_grad_norm(kMaxNorm));
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto result = accelerator.accumulate(model, [&] { return loss_of(model, batches[i]); });
    EXPECT_NEAR(result.loss.item<double>(), losses[i], 1e-6) << "norms differ in the last bit, and so do weights";
    EXPECT_FALSE(result.loss.requires_grad());
    EXPECT_EQ(result.stepped(), i % kParts == kParts - 1);
    EXPECT_EQ(result.grad_norm.defined(), result.stepped());
    if (result.stepped()) {
      // LibTorch's function sums norms where mezzo's sums squares: the last bit of a float.
      EXPECT_NEAR(result.grad_norm.item<double>(), norms[i / kParts], 1e-6 * norms[i / kParts]);
      EXPECT_GT(norms[i / kParts], kMaxNorm) << "clipping has nothing to do";
    }
  }
  EXPECT_TRUE(torch::allclose(model->weight, by_hand->weight, 1e-6, 1e-7)) << model->weight << by_hand->weight;
  EXPECT_EQ(accelerator.scaler().is_enabled(), dtype == torch::kHalf);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AcceleratorDtypeTest, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

/// Counts how its gradients are synchronized, as DistributedDataParallel has `no_sync`.
struct ParallelModel {
  int no_sync(bool enabled) {
    enabled_at_each_call.push_back(enabled);
    return 0;
  }
  void backward(const at::Tensor& loss) {
    ++backwards;
    loss.backward();
  }
  std::vector<bool> enabled_at_each_call;
  int backwards = 0;
};

TEST(AcceleratorTest, SynchronizesGradientsInTheLastMicroBatchAlone) {
  auto net = make_model();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  ParallelModel model;
  Accelerator accelerator(optimizer, AcceleratorOptions().gradient_accumulation_steps(3));
  const auto batches = make_batches(5);
  std::vector<bool> stepped;
  for (size_t i = 0; i < batches.size(); ++i) {
    const bool is_last = i + 1 == batches.size();
    stepped.push_back(accelerator.accumulate(model, [&] { return loss_of(net, batches[i]); }, is_last).stepped());
  }
  EXPECT_THAT(model.enabled_at_each_call, testing::ElementsAre(true, true, false, true, false));
  EXPECT_THAT(stepped, testing::ElementsAre(false, false, true, false, true)) << "the last batch steps at any count";
  EXPECT_EQ(model.backwards, 5) << "the model's own backward names a rank that fails";
}

TEST(AcceleratorTest, AdvancesTheScheduleAfterStepsThatWereNotSkipped) {
  auto model = make_model();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  int scheduled = 0;
  Accelerator accelerator(optimizer, AcceleratorOptions()
                                         .dtype(torch::kHalf)
                                         .lr_scheduler_step([&] { ++scheduled; })
                                         .grad_scaler(GradScalerOptions().init_scale(4)));
  const auto batch = make_batches(1).front();
  EXPECT_TRUE(accelerator.accumulate(model, [&] { return loss_of(model, batch); }).stepped());
  const auto before = model->weight.detach().clone();
  const auto result =
      accelerator.accumulate(model, [&] { return loss_of(model, batch) * std::numeric_limits<float>::infinity(); });
  EXPECT_FALSE(result.stepped());
  EXPECT_TRUE(torch::equal(model->weight, before));
  EXPECT_FALSE(model->weight.grad().defined()) << "the next step starts without the overflow";
  EXPECT_EQ(accelerator.scaler().get_scale(), 2);
  EXPECT_EQ(scheduled, 1);
}

/// Gradients lie on half copies there, where LibTorch's zero_grad does not look.
TEST(AcceleratorTest, ClipsAndDropsTheGradientsOfHalfModels) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    auto model = make_model();
    MasterWeights masters(*model, dtype);
    SGD optimizer(masters.masters(), SGDOptions(1));
    Accelerator accelerator(optimizer, AcceleratorOptions().dtype(dtype).max_grad_norm(0.125));
    for (int step = 0; step < 2; ++step) {
      const auto before = masters.parameters().front().detach().clone();
      const auto result = accelerator.accumulate(model, [&] { return loss_of(model, make_batches(1).front()); });
      EXPECT_GT(result.grad_norm.item<double>(), 0.125) << dtype;
      const auto moved = (masters.parameters().front().detach() - before).norm().item<double>();
      EXPECT_LE(moved, 0.126) << dtype << ": the gradient of an earlier step is not dropped, or none is clipped";
      EXPECT_GT(moved, 0.01) << dtype;
    }
  }
}

TEST(AcceleratorTest, ACallWhoseClosureThrowsMayBeMadeAgain) {
  const auto batches = make_batches(2);
  at::Tensor weights[2];
  for (const bool fails : {false, true}) {
    auto model = make_model();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    Accelerator accelerator(optimizer, AcceleratorOptions().gradient_accumulation_steps(2));
    accelerator.accumulate(model, [&] { return loss_of(model, batches[0]); });
    if (fails) {
      EXPECT_THROW(accelerator.accumulate(model, []() -> at::Tensor { throw std::runtime_error("no file"); }),
                   std::runtime_error);
    }
    EXPECT_TRUE(accelerator.accumulate(model, [&] { return loss_of(model, batches[1]); }).stepped());
    weights[fails] = model->weight.detach();
  }
  EXPECT_TRUE(torch::equal(weights[0], weights[1]));
}

TEST(AcceleratorTest, GoesOnAfterAStepThatFailed) {
  auto model = make_model(), other = make_model();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  Accelerator accelerator(optimizer, AcceleratorOptions().dtype(torch::kHalf).max_grad_norm(1));
  const auto batch = make_batches(1).front();
  EXPECT_THROW(accelerator.accumulate(model, [&] { return loss_of(other, batch); }), c10::Error)
      << "the loss reaches no parameter";
  EXPECT_TRUE(accelerator.accumulate(model, [&] { return loss_of(model, batch); }).stepped());
}

TEST(AcceleratorTest, ReportsTheNormThatAnOptimizerOfMezzoMeasured) {
  auto model = make_model();
  SGD optimizer(model->parameters(), SGDOptions(0.1).max_grad_norm(1));
  Accelerator accelerator(optimizer);
  const auto result = accelerator.accumulate(model, [&] { return loss_of(model, make_batches(1).front()); });
  EXPECT_GT(result.grad_norm.item<double>(), 0);
}

template <class Function>
std::string error_of_call(const Function& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(AcceleratorTest, RefusesOptionsAndLossesThatCannotWork) {
  auto model = make_model();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto made_with = [&](const AcceleratorOptions& options) {
    return error_of_call([&] { Accelerator(optimizer, options); });
  };
  EXPECT_EQ(made_with(AcceleratorOptions().dtype(torch::kDouble)),
            "Accelerator: dtype must be kHalf, kBFloat16 or kFloat, got Double");
  EXPECT_EQ(made_with(AcceleratorOptions().gradient_accumulation_steps(0)),
            "Accelerator: gradient_accumulation_steps must be at least 1, got 0");
  EXPECT_EQ(made_with(AcceleratorOptions().max_grad_norm(-1)), "Accelerator: max_grad_norm must be at least 0, got -1");
  EXPECT_THAT(made_with(AcceleratorOptions().max_grad_norm(std::numeric_limits<double>::quiet_NaN())),
              testing::HasSubstr("got nan"));
  Accelerator accelerator(optimizer);
  EXPECT_EQ(error_of_call([&] { accelerator.accumulate(model, [] { return torch::ones({3}); }); }),
            "Accelerator: the closure returned a tensor of shape [3]; return the loss of the batch as one number, such "
            "as its mean");
  EXPECT_THAT(error_of_call([&] { accelerator.accumulate(model, [] { return at::Tensor(); }); }),
              testing::HasSubstr("returned no tensor"));
}

}  // namespace
}  // namespace mezzo
