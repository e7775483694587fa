#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <sstream>

#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/clip_grad.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/sgd.h"
#include "not_finite.h"
#include "simulated/device_test.h"

/// Whole training steps on a device: the same numbers as on the CPU, and nobody waits.

namespace mezzo::simulated {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr double kLr = 0.05;
/// Factors of the loss: gradients overflow in the third step and the fourth.
constexpr std::array<float, 8> kFactors = {1, 1, kInf, kInf, 1, 1, 1, 1};

enum class Weights { kFloat32, kHalfWithMasters, kBFloat16WithMasters, kBFloat16 };
enum class Clipping { kNone, kInOptimizer, kAfterUnscaling };

struct Recipe {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(ParamGroups, double max_grad_norm, std::optional<uint64_t> rounding_seed)>
      optimizer;
  Weights weights = Weights::kFloat32;
  Clipping clipping = Clipping::kNone;
  int64_t accumulation = 1;
  GradScalerOptions scaler = GradScalerOptions().init_scale(16).growth_interval(2);
};

template <class Optimizer, class Options>
auto maker(const Options& options) {
  return [options](ParamGroups groups, double max_grad_norm, std::optional<uint64_t> rounding_seed) {
    auto all = options;
    all.lr(kLr).weight_decay(0.01).max_grad_norm(max_grad_norm).stochastic_rounding_seed(rounding_seed);
    return std::make_unique<Optimizer>(std::move(groups), all);
  };
}

const auto adamw = maker<AdamW>(AdamWOptions());
const auto adam = maker<Adam>(AdamOptions().amsgrad(true));
const auto sgd = maker<SGD>(SGDOptions().momentum(0.9).nesterov(true));
const auto lamb = maker<LAMB>(LAMBOptions());

/// A net of two layers and its data.
struct Problem {
  explicit Problem(c10::Device device, c10::ScalarType dtype) {
    torch::manual_seed(11);
    for (const auto& [name, size] : std::vector<std::pair<std::string, std::vector<int64_t>>>{
             {"hidden.weight", {8, 4}}, {"hidden.bias", {8}}, {"output.weight", {3, 8}}}) {
      parameters.push_back({name, at::randn(size).mul_(0.5).to(device, dtype).requires_grad_(), {}});
    }
    inputs = at::randn({6, 4}).to(device);
    targets = at::randint(3, {6}, at::kLong).to(device);
    factors = at::tensor(kFactors).to(device);
  }

  at::Tensor loss(int64_t step) const {
    const auto dtype = parameters[0].tensor.scalar_type();
    const auto hidden = at::gelu(at::linear(inputs.to(dtype), parameters[0].tensor, parameters[1].tensor));
    return at::cross_entropy_loss(at::linear(hidden, parameters[2].tensor).to(at::kFloat), targets) * factors[step];
  }

  std::vector<NamedParameter> parameters;
  at::Tensor inputs, targets, factors;
};

/// The results of a training, and the number of the host's waits.
struct Trained {
  std::vector<at::Tensor> tensors;
  std::vector<double> scales, found_infs;
  std::vector<std::string> host_syncs;
};

Trained train(const Recipe& recipe, c10::Device device) {
  Problem problem(device, recipe.weights == Weights::kBFloat16 ? at::kBFloat16 : at::kFloat);
  std::optional<MasterWeights> masters;
  if (recipe.weights == Weights::kHalfWithMasters || recipe.weights == Weights::kBFloat16WithMasters) {
    masters.emplace(problem.parameters, recipe.weights == Weights::kHalfWithMasters ? at::kHalf : at::kBFloat16);
  }
  const auto optimizer = recipe.optimizer(
      masters ? masters->masters() : problem.parameters, recipe.clipping == Clipping::kInOptimizer ? 0.3 : 0,
      recipe.weights == Weights::kBFloat16 ? std::optional<uint64_t>(5) : std::nullopt);
  GradScaler scaler(recipe.scaler);
  std::vector<at::Tensor> scales, found_infs, norms;
  const Watch watch;
  for (size_t step = 0; step < kFactors.size(); ++step) {
    optimizer->zero_grad();
    for (int64_t i = 0; i < recipe.accumulation; ++i) {
      scaler.scale(problem.loss(static_cast<int64_t>(step))).backward();
      if (masters && recipe.accumulation > 1) {
        masters->accumulate_gradients();
      }
    }
    if (recipe.clipping == Clipping::kAfterUnscaling) {
      scaler.unscale_(*optimizer);
      std::vector<at::Tensor> parameters;
      for (const auto& [owner, master] : detail::gradient_owners(*optimizer)) {
        parameters.push_back(owner);
      }
      norms.push_back(clip_grad_norm_(parameters, 0.3));
    }
    found_infs.push_back(scaler.step(*optimizer).found_inf());
    scaler.update();
    scales.push_back(scaler.scale_tensor().clone());
  }
  Trained trained{{}, {}, {}, watch.host_syncs()};
  for (size_t i = 0; i < scales.size(); ++i) {
    trained.scales.push_back(scales[i].item<double>());
    trained.found_infs.push_back(found_infs[i].item<double>());
  }
  for (const auto& parameter : masters ? masters->masters() : problem.parameters) {
    trained.tensors.push_back(parameter.tensor.detach().cpu());
    if (parameter.half_copy.defined()) {
      trained.tensors.push_back(parameter.half_copy.detach().cpu());
    }
  }
  for (const auto& [name, tensor] : optimizer->state_dict()) {
    trained.tensors.push_back(tensor.cpu());
  }
  for (const at::Tensor& norm : norms) {
    trained.tensors.push_back(norm.cpu());
  }
  return trained;
}

class TrainingTest : public DeviceTest, public testing::WithParamInterface<Recipe> {};

TEST_P(TrainingTest, GivesTheCpusNumbersAndWaitsForNothing) {
  const auto here = train(GetParam(), at::kCPU);
  const auto there = train(GetParam(), device);
  EXPECT_THAT(there.host_syncs, IsEmpty());
  EXPECT_EQ(there.scales, here.scales);
  EXPECT_EQ(there.found_infs, here.found_infs);
  EXPECT_EQ(there.found_infs, std::vector<double>({0, 0, 1, 1, 0, 0, 0, 0}));
  ASSERT_EQ(there.tensors.size(), here.tensors.size());
  for (size_t i = 0; i < here.tensors.size(); ++i) {
    // The kernels round in another order: a few units in the last place, of bfloat16 where
    // weights are rounded to it.
    const double tolerance = GetParam().weights == Weights::kFloat32 ? 1e-5 : 4 * 0x1p-8;
    EXPECT_TRUE(at::allclose(there.tensors[i].to(at::kFloat), here.tensors[i].to(at::kFloat), tolerance, tolerance / 10,
                             /*equal_nan=*/true))  // of norms that overflowed
        << i << there.tensors[i] << here.tensors[i];
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TrainingTest,
    testing::ValuesIn(std::vector<Recipe>{
        {"AdamW", adamw},
        {"Adam", adam},
        {"Sgd", sgd},
        {"Lamb", lamb},
        {"AdamWClipped", adamw, Weights::kFloat32, Clipping::kInOptimizer},
        {"SgdClipped", sgd, Weights::kFloat32, Clipping::kInOptimizer},
        {"LambClippedAfterUnscaling", lamb, Weights::kFloat32, Clipping::kAfterUnscaling},
        {"AdamWClippedAfterUnscaling", adamw, Weights::kFloat32, Clipping::kAfterUnscaling},
        {"AdamWOfHalfMasters", adamw, Weights::kHalfWithMasters},
        {"AdamWOfBFloat16Masters", adamw, Weights::kBFloat16WithMasters, Clipping::kInOptimizer},
        {"SgdOfHalfMastersAccumulated", sgd, Weights::kHalfWithMasters, Clipping::kNone, 3},
        {"LambOfHalfMastersClippedAfterUnscaling", lamb, Weights::kHalfWithMasters, Clipping::kAfterUnscaling},
        {"AdamWOfBFloat16", adamw, Weights::kBFloat16},
        {"SgdOfBFloat16Clipped", sgd, Weights::kBFloat16, Clipping::kInOptimizer},
        {"Accumulated", adamw, Weights::kFloat32, Clipping::kInOptimizer, 3},
        {"Static", adamw, Weights::kFloat32, Clipping::kNone, 1, GradScalerOptions().init_scale(8).static_scale(true)},
        {"WithHysteresis", sgd, Weights::kFloat32, Clipping::kNone, 1, GradScalerOptions().init_scale(8).hysteresis(2)},
        {"BelowOne", sgd, Weights::kFloat32, Clipping::kNone, 1, GradScalerOptions().init_scale(0.5).min_scale(0.01)},
        {"AsPytorch", adamw, Weights::kFloat32, Clipping::kNone, 1,
         GradScalerOptions().init_scale(8).reproduce_pytorch(true)},
    }),
    [](const testing::TestParamInfo<Recipe>& recipe) { return recipe.param.name; });

using ResumingTest = DeviceTest;

/// By a state on the CPU, as a checkpoint gives it, by one in torch.optim's
/// layout, and by torch::save.
TEST_F(ResumingTest, GoesOnFromASavedState) {
  const auto step = [](const Problem& problem, Optimizer& optimizer) {
    optimizer.zero_grad();
    problem.loss(0).backward();
    optimizer.step();
  };
  Problem straight(device, at::kFloat);
  const auto whole = adamw(straight.parameters, 0, std::nullopt);
  for (int i = 0; i < 3; ++i) {
    step(straight, *whole);
  }
  for (int way = 0; way < 3; ++way) {
    Problem first(device, at::kFloat), second(device, at::kFloat);
    const auto before = adamw(first.parameters, 0, std::nullopt), after = adamw(second.parameters, 0, std::nullopt);
    step(first, *before);
    step(first, *before);
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < first.parameters.size(); ++i) {
        second.parameters[i].tensor.copy_(first.parameters[i].tensor.cpu());
      }
    }
    if (way == 0) {
      auto state = before->state_dict();
      for (auto& [name, tensor] : state) {
        tensor = tensor.cpu();
      }
      after->load_state_dict(state);
    } else if (way == 1) {
      after->load_torch_state_dict(before->torch_state_dict());
    } else {
      std::stringstream file;
      torch::serialize::OutputArchive out;
      out << *before;
      out.save_to(file);
      torch::serialize::InputArchive in;
      in.load_from(file);
      in >> *after;
    }
    step(second, *after);
    for (size_t i = 0; i < first.parameters.size(); ++i) {
      EXPECT_TRUE(at::equal(second.parameters[i].tensor, straight.parameters[i].tensor)) << way << " " << i;
    }
  }
}

}  // namespace
}  // namespace mezzo::simulated
