#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/checkpoint.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/graph/graphed_step.h"
#include "mezzo/optim/sgd.h"
#include "recipe_models.h"
#include "simulated/device_test.h"

/// The column of graphs in the recipe matrix, whose other columns are in tests/python/amp/test_recipes.py. Recorded
/// steps train each model as eager steps of the same device do. The models are the other columns' models, except the
/// encoder.

namespace mezzo::simulated {
namespace {

using Tensors = GraphedStep::Tensors;

struct GraphRecipe {
  std::string name;
  std::optional<at::ScalarType> autocast = {}, masters = {};
  bool checkpoints = false;
  double dropout = 0;  // of the model's input
  double init_scale = 1024;
};

/// Graphs cannot save random states, so no recipe has dropout in a checkpoint.
const auto kInGraphs = CheckpointOptions().preserve_rng_state(false);

/// Gradients overflow at this scale, and still do after two steps back; after five they do not.
constexpr double kTooLarge = 0x1p36;

const std::vector<GraphRecipe> kGraphRecipes = {{.name = "fp32"},
                                                {.name = "bf16 autocast", .autocast = at::kBFloat16},
                                                {.name = "fp16 autocast", .autocast = at::kHalf},
                                                {.name = "bf16 masters", .masters = at::kBFloat16},
                                                {.name = "fp16 masters", .masters = at::kHalf},
                                                {.name = "checkpointed", .autocast = at::kHalf, .checkpoints = true},
                                                {.name = "dropout", .autocast = at::kBFloat16, .dropout = 0.25},
                                                {.name = "overflows", .autocast = at::kHalf, .init_scale = kTooLarge}};

/// An encoder that a graph can hold. LibTorch's MultiheadAttention compares its inputs by at::equal on the host, for
/// which no recorded step can wait: neither here nor on CUDA.
struct EncoderForGraphs : RecipeModel {
  EncoderForGraphs() {
    in = register_module("in", torch::nn::Linear(16, 48));
    out = register_module("out", torch::nn::Linear(16, 16));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    feed = register_module(
        "feed", torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 16)));
    head = register_module("head", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) override {  // [B, T, 16]
    const auto heads = in(x).unflatten(-1, {3, 2, 8}).permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(heads[0], heads[1], heads[2]);  // [B, 2, T, 8]
    const auto hidden = norm(x + out(mixed.transpose(1, 2).flatten(2)));
    return head((hidden + feed->forward(hidden)).mean(1));
  }

  torch::nn::Linear in{nullptr}, out{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Sequential feed{nullptr};
};

/// A model on the device and all that a recipe adds to it.
class Learner {
 public:
  Learner(const std::string& name, const GraphRecipe& recipe, c10::Device device)
      : recipe_(recipe), model_(name == "encoder" ? std::make_shared<EncoderForGraphs>() : make_recipe_model(name)) {
    if (name == "cnn") {
      for (at::Tensor& parameter : model_->parameters()) {
        parameter.set_data(parameter.dim() == 4 ? parameter.contiguous(at::MemoryFormat::ChannelsLast) : parameter);
      }
    }
    move_to(*model_, device);
    if (recipe.masters) {
      masters_.emplace(*model_, *recipe.masters);
    }
    optimizer_.emplace(masters_ ? masters_->masters() : named_parameters(*model_), SGDOptions().lr(0.05).momentum(0.9));
  }

  at::Tensor operator()(const at::Tensor& x) {
    const AutocastGuard autocast(kType, recipe_.autocast.value_or(at::kBFloat16), recipe_.autocast.has_value());
    const auto input = recipe_.masters ? x.to(*recipe_.masters) : x;
    const auto forward = [model = model_, p = recipe_.dropout](const at::Tensor& each) {
      return model->forward(p > 0 ? at::dropout(each, p, /*train=*/true) : each);
    };
    return (recipe_.checkpoints ? checkpoint(kInGraphs, forward, input) : forward(input)).to(at::kFloat);
  }

  at::Tensor first_weight() const { return model_->parameters().front().detach().cpu().clone(); }
  void zero_grad() { optimizer_->zero_grad(); }
  void step(GradScaler& scaler, const at::Tensor& loss) {
    scaler.scale(loss).backward();
    scaler.step(*optimizer_);
  }

  /// Weights, moments and buffers.
  void add_state(const std::string& name, std::map<std::string, at::Tensor>& state) const {
    for (const auto& [key, tensor] : optimizer_->state_dict()) {
      state[name + key] = tensor.cpu();
    }
    for (const auto& list : {model_->named_parameters(), model_->named_buffers()}) {
      for (const auto& item : list) {
        state[name + item.key()] = item.value().detach().cpu();
      }
    }
  }

 private:
  GraphRecipe recipe_;
  std::shared_ptr<RecipeModel> model_;
  std::optional<MasterWeights> masters_;
  std::optional<SGD> optimizer_;
};

GradScaler scaler_of(const GraphRecipe& recipe) {
  const bool enabled = recipe.autocast == at::kHalf || recipe.masters == at::kHalf;
  return GradScaler(GradScalerOptions()
                        .init_scale(recipe.init_scale)
                        .backoff_factor(recipe.init_scale == kTooLarge ? 0x1p-6 : 0.5)
                        .growth_interval(3)
                        .enabled(enabled));
}

/// The losses of some steps and the state after them.
std::map<std::string, at::Tensor> trained(const std::string& name,
                                          const GraphRecipe& recipe,
                                          bool graphed,
                                          c10::Device device) {
  constexpr int64_t kSteps = 8, kWarmup = 2;
  torch::manual_seed(3);
  const bool is_gan = name == "gan";
  std::vector<Learner> learners;
  for (const std::string& each : is_gan ? std::vector<std::string>{"generator", "discriminator"} : std::vector{name}) {
    learners.emplace_back(each, recipe, device);
  }
  const auto before = learners[0].first_weight();
  auto scaler = scaler_of(recipe);
  const auto update = [&](Learner& learner, const at::Tensor& loss) {
    learner.zero_grad();
    learner.step(scaler, loss);
    return loss.detach();
  };
  const auto classify = [&](const Tensors& inputs) {
    const auto loss = update(learners[0], at::cross_entropy_loss(learners[0](inputs[0]), inputs[1]));
    scaler.update();
    return Tensors{loss};
  };
  const auto judge = [](const at::Tensor& judged, double label) {
    return at::binary_cross_entropy_with_logits(judged, at::full_like(judged, label));
  };
  const auto compete = [&](const Tensors& inputs) {
    auto &generator = learners[0], &discriminator = learners[1];
    const auto fake = generator(inputs[0]);
    const auto loss =
        update(discriminator, judge(discriminator(inputs[1]), 1) + judge(discriminator(fake.detach()), 0));
    const auto other = update(generator, judge(discriminator(fake), 1));
    scaler.update();
    return Tensors{loss, other};
  };
  GraphedStep step(device, is_gan ? GraphedStep::Step(compete) : GraphedStep::Step(classify),
                   GraphedStepOptions().warmup_steps(kWarmup).enabled(graphed));
  std::map<std::string, at::Tensor> result;
  for (int64_t i = 0; i < kSteps; ++i) {
    Tensors inputs{is_gan              ? at::randn({16, 4})
                   : name == "encoder" ? at::randn({16, 6, 16})
                   : name == "lstm"    ? at::randn({16, 6, 5})
                                       : at::randn({16, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast),
                   is_gan ? at::randn({16, 2}) + 1 : at::arange(16).remainder(3)};
    for (at::Tensor& input : inputs) {
      input = input.to(device);
    }
    const auto losses = step(inputs);
    for (size_t l = 0; l < losses.size(); ++l) {
      result[c10::str("loss ", l, " of step ", i)] = losses[l].cpu();
    }
  }
  EXPECT_EQ(step.counts().replayed, graphed ? kSteps - kWarmup : 0);
  EXPECT_FALSE(at::equal(learners[0].first_weight(), before)) << "it trains";
  if (recipe.init_scale == kTooLarge) {
    EXPECT_GT(scaler.get_skipped_steps(), kWarmup) << "a recorded step was skipped";
    EXPECT_LT(scaler.get_skipped_steps(), kSteps);
  }
  for (size_t l = 0; l < learners.size(); ++l) {
    learners[l].add_state(c10::str(l, " "), result);
  }
  result["scale"] = at::scalar_tensor(scaler.get_scale(), at::kDouble);
  return result;
}

class RecipesDeviceTest : public DeviceTest, public testing::WithParamInterface<std::string> {};

TEST_P(RecipesDeviceTest, RecordedStepsTrainAsEagerOnes) {
  for (const GraphRecipe& recipe : kGraphRecipes) {
    SCOPED_TRACE(recipe.name);
    const auto eager = trained(GetParam(), recipe, /*graphed=*/false, device),
               graphed = trained(GetParam(), recipe, /*graphed=*/true, device);
    ASSERT_EQ(eager.size(), graphed.size());
    for (const auto& [name, tensor] : eager) {
      EXPECT_TRUE(at::equal(tensor, graphed.at(name))) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         RecipesDeviceTest,
                         testing::Values("encoder", "cnn", "lstm", "gan"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace mezzo::simulated
