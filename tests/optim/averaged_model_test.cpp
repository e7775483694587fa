#include "mezzo/optim/averaged_model.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include <memory>
#include <sstream>
#include <tuple>
#include <vector>

namespace mezzo {
namespace {

torch::nn::Sequential make_model() { return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)); }

/// As if it had been trained.
void change(torch::nn::Sequential& model, double to) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& tensor : model->parameters()) {
    tensor.fill_(to);
  }
  model[1]->as<torch::nn::BatchNorm1d>()->running_mean.fill_(to);
}

double weight(const torch::nn::Sequential& model) { return model->parameters()[0][0][0].item<double>(); }
double mean(const torch::nn::Sequential& model) { return model->named_buffers()["1.running_mean"][0].item<double>(); }

TEST(AveragedModelTest, TakesTheMeanOfAllModels) {
  auto model = make_model();
  AveragedModel swa(model);
  for (const double value : {1.0, 2.0, 6.0}) {
    change(model, value);
    swa.update_parameters(*model);
  }
  EXPECT_EQ(swa.n_averaged(), 3);
  EXPECT_EQ(weight(swa.module()), 3.0);
  EXPECT_EQ(mean(swa.module()), 6.0) << "buffers are copied";
  EXPECT_EQ(weight(model), 6.0) << "the model is left alone";
}

TEST(AveragedModelTest, MovesWithADecay) {
  auto model = make_model();
  AveragedModel ema(model, get_ema_multi_avg_fn(0.75), /*use_buffers=*/true), other(model, get_ema_multi_avg_fn(0.75));
  for (const double value : {1.0, 2.0, 6.0}) {
    change(model, value);
    ema.update_parameters(*model);
    other.update_parameters(*model);
  }
  EXPECT_EQ(weight(other.module()), weight(ema.module()));
  EXPECT_EQ(mean(other.module()), 6.0);
  EXPECT_EQ(weight(ema.module()), 0.75 * 1.25 + 0.25 * 6.0);
  EXPECT_EQ(mean(ema.module()), 0.75 * 1.25 + 0.25 * 6.0);
}

struct NotCloneableImpl : torch::nn::Module {
  NotCloneableImpl() { weight = register_parameter("weight", torch::zeros({2})); }
  torch::Tensor weight;
};

TEST(AveragedModelTest, TakesAnInstanceWhereAModuleCannotBeCloned) {
  using Model = std::shared_ptr<NotCloneableImpl>;
  const auto model = std::make_shared<NotCloneableImpl>();
  EXPECT_THROW(AveragedModel<Model>{model}, c10::Error);
  auto swa = AveragedModel<Model>::into(std::make_shared<NotCloneableImpl>());
  swa.update_parameters(*model);
  torch::NoGradGuard no_grad;
  model->weight.fill_(4);
  swa.update_parameters(*model);
  EXPECT_TRUE(torch::equal(swa.module()->weight, torch::full({2}, 2.0)));
}

TEST(AveragedModelTest, RefusesAnotherModelBeforeAnythingChanges) {
  auto model = make_model();
  AveragedModel swa(model);
  change(model, 2);
  swa.update_parameters(*model);
  EXPECT_THROW(swa.update_parameters(*torch::nn::Linear(3, 4)), c10::ValueError);
  EXPECT_THROW(swa.update_parameters(*torch::nn::Sequential(torch::nn::Linear(2, 4), torch::nn::BatchNorm1d(4))),
               c10::ValueError);
  EXPECT_EQ(weight(swa.module()), 2.0);
  EXPECT_EQ(swa.n_averaged(), 1);
}

TEST(AveragedModelTest, ContinuesFromAnArchive) {
  auto model = make_model();
  AveragedModel swa(model), resumed(model);
  for (const double value : {1.0, 2.0}) {
    change(model, value);
    swa.update_parameters(*model);
  }
  std::stringstream file;
  torch::save(swa, file);
  torch::load(resumed, file);
  change(model, 6.0);
  resumed.update_parameters(*model);
  EXPECT_EQ(resumed.n_averaged(), 3);
  EXPECT_EQ(weight(resumed.module()), 3.0);
  std::stringstream of_tensor;
  torch::save(torch::ones({}), of_tensor);
  EXPECT_THROW(torch::load(resumed, of_tensor), c10::ValueError);
}

TEST(UpdateBnTest, ComputesStatisticsAnew) {
  torch::manual_seed(3);
  auto model = make_model();
  auto* const norm = model[1]->as<torch::nn::BatchNorm1d>();
  norm->running_mean.fill_(100);
  model->eval();
  using Batch = std::tuple<torch::Tensor, int>;
  const std::vector<Batch> batches{{torch::randn({8, 3}), 0}, {torch::randn({8, 3}), 0}, {torch::randn({8, 3}), 0}};
  update_bn(batches, model);

  auto mean = torch::zeros({4}), variance = torch::zeros({4});
  for (const auto& [input, label] : batches) {
    const auto rows = model[0]->as<torch::nn::Linear>()->forward(input).detach();
    mean += rows.mean(0) / 3;
    variance += rows.var(0) / 3;
  }
  // Sums of 3 float32 numbers near 1, in another order.
  EXPECT_TRUE(torch::allclose(norm->running_mean, mean, /*rtol=*/1e-5, /*atol=*/1e-6));
  EXPECT_TRUE(torch::allclose(norm->running_var, variance, /*rtol=*/1e-5, /*atol=*/1e-6));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 3);
  EXPECT_EQ(norm->options.momentum(), 0.1);
  EXPECT_FALSE(model->is_training());

  torch::nn::Sequential without(torch::nn::Linear(3, 4));
  std::vector<torch::Tensor> wrong{torch::ones({1, 99})};
  update_bn(wrong, without);  // is not called
}

/// Two names of one weight; on the stack, too.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(int64_t size = 2) {
    first = register_module("first", torch::nn::Linear(size, size));
    norm = register_module("norm", torch::nn::BatchNorm1d(size));
    register_parameter("head", first->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(first(x)); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(AveragedModelTest, AveragesATiedWeightOnce) {
  const auto model = std::make_shared<TiedImpl>();
  auto ema = AveragedModel<std::shared_ptr<TiedImpl>>::into(std::make_shared<TiedImpl>(), get_ema_multi_avg_fn(0.75));
  const torch::NoGradGuard no_grad;
  for (const double value : {1.0, 2.0}) {
    model->first->weight.fill_(value);
    ema.update_parameters(*model);
  }
  EXPECT_EQ(ema.module()->first->weight[0][0].item<double>(), 1.25);
}

TEST(AveragedModelTest, AveragesAHalfModelInFloat32) {
  const auto model = std::make_shared<TiedImpl>();
  model->to(torch::kBFloat16);
  auto ema = AveragedModel<std::shared_ptr<TiedImpl>>::into(std::make_shared<TiedImpl>(), get_ema_multi_avg_fn(0.75));
  const torch::NoGradGuard no_grad;
  for (const double value : {1.0, 2.0}) {
    model->first->bias.fill_(value);
    ema.update_parameters(*model);
  }
  EXPECT_EQ(ema.module()->first->bias[0].item<double>(), 1.25);
  EXPECT_EQ(ema.module()->first->bias.scalar_type(), torch::kFloat);
}

TEST(AveragedModelTest, RefusesAnArchiveOfOtherShapes) {
  torch::nn::Linear small(2, 2), large(3, 3);
  std::stringstream archive;
  torch::save(AveragedModel(large), archive);
  AveragedModel average(small);
  EXPECT_THROW(torch::load(average, archive), c10::ValueError);
  EXPECT_EQ(average.module()->weight.size(0), 2) << "nothing has changed";
}

TEST(UpdateBnTest, TakesAModuleOnTheStack) {
  TiedImpl module;
  TiedImpl* const model = &module;
  const std::vector<torch::Tensor> loader{torch::randn({8, 2}) + 5};
  update_bn(loader, model);
  EXPECT_NE(module.norm->running_mean[0].item<double>(), 0);
}

}  // namespace
}  // namespace mezzo
