#include "mezzo/distributed/zero/sharded_master_weights.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

namespace mezzo::distributed {
namespace {

/// A model on rank 0: a parameter of rank 0, one of rank 1 under two names, a norm of rank 1, a
/// frozen one.
struct Model {
  at::Tensor mine = torch::full({2}, 0.1f).requires_grad_(), other = torch::full({3}, 0.2f).requires_grad_(),
             norm = torch::full({2}, 0.3f).requires_grad_(), frozen = torch::full({2}, 0.4f);

  std::vector<NamedParameter> parameters() const {
    return {{"other", other}, {"mine", mine}, {"a.LayerNorm.weight", norm}, {"frozen", frozen}, {"tied", other}};
  }
  ShardedMasterWeights masters() const {
    return {parameters(),
            torch::kHalf,
            {{"mine", 0}, {"other", 1}, {"tied", 0}, {"a.LayerNorm.weight", 1}},
            /*rank=*/0,
            MasterWeightsOptions().keep_norms_fp32(true)};
  }
  std::map<std::string, at::Tensor> state(float value) const {
    std::map<std::string, at::Tensor> state;
    for (const NamedParameter& parameter : parameters()) {
      state[parameter.name] = torch::full(parameter.tensor.sizes(), value);
    }
    return state;
  }
};

std::vector<std::string> names_of(const std::map<std::string, at::Tensor>& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) {
    names.push_back(name);
  }
  return names;
}

TEST(ShardedMasterWeightsTest, HasMastersOfItsShareAlone) {
  const Model model;
  const auto masters = model.masters();
  ASSERT_EQ(masters.masters().size(), 3u) << "in the model's order, each once";
  const NamedParameter &other = masters.masters()[0], &mine = masters.masters()[1], &norm = masters.masters()[2];
  EXPECT_TRUE(mine.half_copy.is_same(model.mine) && mine.tensor.scalar_type() == torch::kFloat);
  EXPECT_TRUE(other.tensor.is_same(model.other) && !other.half_copy.defined());
  EXPECT_TRUE(norm.tensor.is_same(model.norm) && norm.tensor.scalar_type() == torch::kFloat);
  for (const auto& half : {model.mine, model.other, model.frozen}) {
    EXPECT_EQ(half.scalar_type(), torch::kHalf);
  }
  EXPECT_EQ(names_of(masters.state_dict()), (std::vector<std::string>{"a.LayerNorm.weight", "frozen", "mine"}));
}

TEST(ShardedMasterWeightsTest, DropsTheGradientsOfOtherRanksWhereItSumsItsOwn) {
  const Model model;
  auto masters = model.masters();
  for (int i = 0; i < 2; ++i) {
    model.mine.mutable_grad() = torch::ones({2}, torch::kHalf);
    model.other.mutable_grad() = torch::ones({3}, torch::kHalf);
    masters.accumulate_gradients();
    EXPECT_FALSE(model.mine.grad().defined() || model.other.grad().defined());
  }
  EXPECT_TRUE(torch::equal(masters.masters()[1].tensor.grad(), torch::full({2}, 2.0f)));
}

TEST(ShardedMasterWeightsTest, TakesTheWeightsOfAWholeModelOrNothing) {
  const Model model;
  auto masters = model.masters();
  auto missing = model.state(0.5), half = model.state(0.5), large = model.state(0.5), untied = model.state(0.5),
       shape = model.state(0.5), unknown = model.state(0.5);
  missing.erase("other");
  half["other"] = half["tied"] = torch::ones({3}, torch::kHalf);
  large["other"] = large["tied"] = torch::full({3}, 1e6f);
  untied["tied"] = torch::ones({3});
  shape["other"] = shape["tied"] = torch::ones({4});
  unknown["unknown"] = torch::ones({1});
  for (const auto& wrong : {missing, half, large, untied, shape, unknown}) {
    EXPECT_THROW(masters.load_state_dict(wrong), c10::ValueError);
    EXPECT_TRUE(torch::equal(model.other, torch::full({3}, 0.2f).to(torch::kHalf))) << model.other;
    EXPECT_TRUE(torch::equal(model.mine, torch::full({2}, 0.1f).to(torch::kHalf))) << model.mine;
  }
  masters.load_state_dict(model.state(0.7f));
  EXPECT_TRUE(torch::equal(model.other, torch::full({3}, 0.7f).to(torch::kHalf)));
  EXPECT_TRUE(torch::equal(model.mine, torch::full({2}, 0.7f).to(torch::kHalf)));
  EXPECT_TRUE(torch::equal(masters.masters()[1].tensor, torch::full({2}, 0.7f)));
  EXPECT_THROW(masters.to_float32(), c10::Error);
}

TEST(ShardedMasterWeightsTest, ChangesNothingWhereAParameterOfAnotherRankCannotBeHalf) {
  Model model;
  model.other = torch::full({3}, 1e6f).requires_grad_();
  EXPECT_THROW(model.masters(), c10::ValueError);
  EXPECT_TRUE(torch::equal(model.mine, torch::full({2}, 0.1f))) << model.mine;
  EXPECT_TRUE(torch::equal(model.other, torch::full({3}, 1e6f)));
  EXPECT_THROW(ShardedMasterWeights(model.parameters(), torch::kHalf, {{"mine", 0}}, /*rank=*/0), c10::ValueError);
}

}  // namespace
}  // namespace mezzo::distributed
