#include "scaling/loss_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>
#include <string>
#include <vector>

namespace mezzo {
namespace {

LossScaleRules rules() {
  return {.init_scale = 8,
          .growth_factor = 2,
          .backoff_factor = 0.5,
          .growth_interval = 2,
          .min_scale = 1,
          .max_scale = 64,
          .hysteresis = 1,
          .is_static = false,
          .reproduce_pytorch = false,
          .counts_skips_in_a_row = true};
}

LossScale made(const LossScaleRules& rules) {
  LossScale scale(rules);
  scale.create(c10::kCPU);
  return scale;
}

at::Tensor found_inf(bool is_found) { return torch::full({}, is_found ? 1.0f : 0.0f); }

/// The scale after each of several iterations: 'x' overflows, '.' does not.
std::vector<double> scales_after(LossScale& scale, const std::string& iterations) {
  std::vector<double> scales;
  for (const char iteration : iterations) {
    scale.update(found_inf(iteration == 'x'));
    scales.push_back(scale.value());
  }
  return scales;
}

TEST(LossScaleTest, GrowsAfterGoodIterationsInARowAndBacksOffAtOnce) {
  auto scale = made(rules());
  EXPECT_THAT(scales_after(scale, "..x.x.."), testing::ElementsAre(8, 16, 8, 8, 4, 4, 8));
  EXPECT_EQ(scale.growth_tracker(), 0);
  EXPECT_EQ(scale.skipped(), 2);
}

TEST(LossScaleTest, StaysWithinItsBounds) {
  auto scale = made(rules());
  EXPECT_THAT(scales_after(scale, "xxxxx"), testing::ElementsAre(4, 2, 1, 1, 1));
  EXPECT_EQ(scales_after(scale, std::string(20, '.')).back(), 64);
}

TEST(LossScaleTest, BacksOffFromTheHysteresisthOverflowInARowOn) {
  auto with = rules();
  with.hysteresis = 3;
  auto scale = made(with);
  EXPECT_THAT(scales_after(scale, "xx.xxxx.xx"), testing::ElementsAre(8, 8, 8, 8, 8, 4, 2, 2, 2, 2))
      << "an iteration without overflow starts the row afresh";
}

TEST(LossScaleTest, CountsSkipsThoughItIsStatic) {
  auto with = rules();
  with.is_static = true;
  auto scale = made(with);
  EXPECT_THAT(scales_after(scale, "...x.xx"), testing::Each(8));
  EXPECT_EQ(scale.skipped(), 3);
  EXPECT_EQ(scale.skips_in_a_row(found_inf(true)), 3) << "with the iteration at hand";
  EXPECT_EQ(scale.skips_in_a_row(found_inf(false)), 0);
}

TEST(LossScaleTest, ChangesItsScalarInPlaceAsACapturedGraphNeedsIt) {
  auto scale = made(rules());
  const void* const place = scale.tensor().data_ptr();
  scales_after(scale, "x..");
  scale.set(16.0);
  scale.set(torch::full({1}, 1000.0, torch::kDouble));
  EXPECT_EQ(scale.value(), 64) << "clamped";
  scale.load_state_dict(scale.state_dict());
  EXPECT_EQ(scale.tensor().data_ptr(), place);
}

TEST(LossScaleTest, HasAStateBeforeItsScalarsAreMade) {
  auto started = made(rules());
  scales_after(started, "x.");
  LossScale lazy(rules());
  lazy.load_state_dict(started.state_dict());
  EXPECT_FALSE(lazy.exists());
  EXPECT_EQ(lazy.value(), 4);
  EXPECT_EQ(lazy.growth_tracker(), 1);
  lazy.create(c10::kCPU);
  EXPECT_THAT(scales_after(lazy, "."), testing::ElementsAre(8));
}

TEST(LossScaleTest, CarriesOverflowsOnTheWayToABackoffInItsState) {
  auto with = rules();
  with.hysteresis = 3;
  auto scale = made(with);
  scales_after(scale, "xx");
  const auto state = scale.state_dict();
  EXPECT_EQ(state.at("_hysteresis_tracker").toLong(), 1);
  auto resumed = made(with);
  resumed.load_state_dict(state);
  EXPECT_THAT(scales_after(resumed, "x"), testing::ElementsAre(4));
  EXPECT_EQ(made(rules()).state_dict().count("_hysteresis_tracker"), 0u) << "PyTorch knows of none";

  auto of_torch = state;
  of_torch.erase("_hysteresis_tracker");
  resumed.load_state_dict(of_torch);
  EXPECT_THAT(scales_after(resumed, "xxx"), testing::ElementsAre(8, 8, 4)) << "afresh";
}

TEST(LossScaleTest, GrowsAtTheNextGoodIterationWhereTheIntervalFellBelowTheirCount) {
  for (const bool reproduce_pytorch : {false, true}) {
    auto with = rules();
    with.growth_interval = 10;
    with.reproduce_pytorch = reproduce_pytorch;
    auto scale = made(with);
    scales_after(scale, ".....");
    scale.set_growth_interval(2);
    EXPECT_EQ(scales_after(scale, ".").back(), reproduce_pytorch ? 8 : 16);
  }
}

TEST(LossScaleTest, RefusesSettingsAndStatesOutOfRangeAndKeepsItsOwn) {
  const auto refuses = [](auto change) {
    auto with = rules();
    change(with);
    EXPECT_THROW(LossScale scale(with), c10::ValueError);
  };
  refuses([](auto& with) { with.init_scale = 128; });
  refuses([](auto& with) { with.min_scale = -1; });
  refuses([](auto& with) { with.growth_factor = 1; });
  refuses([](auto& with) { with.backoff_factor = 1; });
  refuses([](auto& with) { with.growth_interval = 0; });
  refuses([](auto& with) { with.hysteresis = 0; });
  refuses([](auto& with) { with.hysteresis = 2, with.reproduce_pytorch = true; });

  auto scale = made(rules());
  auto state = scale.state_dict();
  state["scale"] = 2.0;
  state["_growth_tracker"] = int64_t{-1};
  EXPECT_THROW(scale.load_state_dict(state), c10::ValueError);
  EXPECT_EQ(scale.value(), 8);
}

}  // namespace
}  // namespace mezzo
