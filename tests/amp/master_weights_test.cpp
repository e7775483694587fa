#include "mezzo/amp/master_weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "mezzo/optim/sgd.h"

namespace mezzo {
namespace {

TEST(MasterWeightsTest, KeepsUpdatesTooSmallForTheModelsDtype) {
  auto weight = at::ones({4}).requires_grad_();
  MasterWeights masters({{"weight", weight}}, at::kBFloat16);
  SGD sgd({{masters.masters()}}, SGDOptions().lr(1e-3));
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
  for (int step = 0; step < 8; ++step) {  // each update is a quarter of bfloat16's spacing below 1, 2^-8
    weight.sum().backward();
    masters.accumulate_gradients();
    EXPECT_FALSE(weight.grad().defined());
    sgd.step();
    sgd.zero_grad();
    masters.copy_to_model();
  }
  EXPECT_NEAR(masters.masters()[0].tensor[0].item<float>(), 1 - 8e-3, 1e-6);
  EXPECT_TRUE(at::equal(weight, masters.masters()[0].tensor.to(at::kBFloat16)));
  EXPECT_LT(weight[0].item<float>(), 1);
}

TEST(MasterWeightsTest, SumsMicroBatchGradientsInFloat32) {
  auto weight = at::zeros({1}).requires_grad_();
  MasterWeights masters({{"weight", weight}}, at::kHalf);
  for (const double gradient : {2048.0, 1.0, 1.0}) {  // 2048 + 1 rounds to 2048 in float16
    (weight * gradient).sum().backward();
    masters.accumulate_gradients();
  }
  EXPECT_EQ(masters.masters()[0].tensor.grad().item<float>(), 2050);
}

TEST(MasterWeightsTest, RefusesOtherDtypesBeforeAnythingChanges) {
  auto weight = at::ones({1}).requires_grad_(), half = at::ones({1}, at::kHalf).requires_grad_();
  EXPECT_THROW(MasterWeights({{"weight", weight}}, at::kFloat), c10::ValueError);
  try {
    MasterWeights masters({{"weight", weight}, {"half", half}}, at::kHalf);
    FAIL() << "a half parameter has no float32 value to keep";
  } catch (const c10::ValueError& error) {
    EXPECT_NE(error.msg().find("parameter half is Half"), std::string::npos) << error.msg();
  }
  EXPECT_EQ(weight.scalar_type(), at::kFloat);
}

TEST(MasterWeightsTest, RefusesAStateWhoseEntriesForOneParameterDifferInAnything) {
  auto weight = at::ones({2}).requires_grad_();
  MasterWeights masters({{"a", weight}, {"b", weight}}, at::kHalf);
  const auto values = at::full({2}, 3.0F);
  for (const auto& other : {at::full({2}, 4.0F), at::full({3}, 3.0F), values.to(at::kDouble)}) {
    try {
      masters.load_state_dict({{"a", values}, {"b", other}});
      FAIL() << other;
    } catch (const c10::ValueError& error) {
      EXPECT_NE(error.msg().find("entries a and b of the state to load differ"), std::string::npos) << error.msg();
    }
  }
  masters.load_state_dict({{"a", values}, {"b", values.clone()}});
  EXPECT_EQ(weight[0].item<float>(), 3);
}

}  // namespace
}  // namespace mezzo
