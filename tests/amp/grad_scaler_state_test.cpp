#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "amp/grad_scaler_fixture.h"

namespace mezzo {
namespace {

TEST(GradScalerTest, RefusesOptionsOutOfRange) {
  const auto message = [](GradScalerOptions options) {
    return error_of<c10::ValueError>([&] { GradScaler scaler(options); });
  };
  EXPECT_EQ(message(GradScalerOptions().init_scale(0.0)),
            "GradScaler: init_scale must be positive and finite in float32, got 0.");
  for (const double bad : {-1.0, 1e39, 1e-60, double{kInf}, double{kNaN}}) {
    EXPECT_THAT(message(GradScalerOptions().init_scale(bad)), testing::HasSubstr("must be positive and finite"));
  }
  EXPECT_EQ(message(GradScalerOptions().init_scale(1.0).min_scale(2.0).max_scale(8.0)),
            "GradScaler: init_scale must be between min_scale 2 and max_scale 8, got 1.");
  EXPECT_EQ(message(GradScalerOptions().min_scale(4.0).max_scale(2.0)),
            "GradScaler: min_scale and max_scale must satisfy 0 <= min_scale <= max_scale <= 3.40282e+38, got 4 and "
            "2.");
  EXPECT_EQ(message(GradScalerOptions().growth_factor(1.0)),
            "GradScaler: growth_factor must be finite and > 1, got 1.");
  EXPECT_EQ(message(GradScalerOptions().backoff_factor(1.0)),
            "GradScaler: backoff_factor must be between 0 and 1, got 1. For a scale that stays as it is, set the "
            "option static_scale.");
  EXPECT_THAT(message(GradScalerOptions().backoff_factor(0.0)), testing::HasSubstr("between 0 and 1, got 0"));
  EXPECT_EQ(
      message(GradScalerOptions().growth_interval(0)),
      "GradScaler: growth_interval must be between 1 and 2147483647, got 0. For a scale that stays as it is, set the "
      "option static_scale.");
  GradScaler scaler;
  EXPECT_THROW(scaler.set_growth_factor(0.5), c10::ValueError);
  EXPECT_THROW(scaler.set_backoff_factor(kNaN), c10::ValueError);
  EXPECT_THROW(scaler.set_growth_interval(-1), c10::ValueError);
  EXPECT_EQ(scaler.get_growth_factor(), 2.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.5);
  EXPECT_EQ(scaler.get_growth_interval(), 2000);
}

TEST(GradScalerTest, TakesANewScaleFromANumberOrATensor) {
  GradScaler scaler(GradScalerOptions().max_scale(1e6));
  scaler.scale(torch::ones({}));
  scaler.update(1024);
  EXPECT_EQ(scaler.get_scale(), 1024.0);
  scaler.update(torch::full({1}, 32.0, torch::kDouble));
  EXPECT_EQ(scaler.get_scale(), 32.0);
  const std::string message =
      "GradScaler: the new scale given to update() must be a number, or a 1-element tensor on the CPU or on cpu that "
      "requires no gradient.";
  for (const auto& bad : {torch::Tensor(), torch::ones({2}), torch::ones({1}, torch::requires_grad())}) {
    EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.update(bad); }), message);
  }
  EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.update(2e6); }),
            "GradScaler: the new scale given to update() must be between min_scale 1.17549e-38 and max_scale 1e+06, "
            "got 2e+06.");
  EXPECT_EQ(scaler.get_scale(), 32.0);
}

TEST(GradScalerTest, RoundTripsItsStateWithPyTorchsKeys) {
  auto weight = weights();
  auto sgd = sgd_for({weight});
  GradScaler saved(GradScalerOptions().init_scale(8.0).growth_factor(3.0).backoff_factor(0.25).growth_interval(5));
  backward(saved, weight, {1.0f, 1.0f});
  saved.step(sgd);
  saved.update();
  const auto state = saved.state_dict();
  std::vector<std::string> keys;
  for (const auto& [key, value] : state) {
    keys.push_back(key);
  }
  EXPECT_THAT(keys,
              testing::ElementsAre("_growth_tracker", "backoff_factor", "growth_factor", "growth_interval", "scale"));

  GradScaler lazy;
  lazy.load_state_dict(state);
  GradScaler started;
  started.scale(torch::ones({}));
  started.load_state_dict(state);
  for (GradScaler* loaded : {&lazy, &started}) {
    EXPECT_EQ(loaded->get_scale(), 8.0);
    EXPECT_EQ(loaded->get_growth_factor(), 3.0);
    EXPECT_EQ(loaded->get_backoff_factor(), 0.25);
    EXPECT_EQ(loaded->get_growth_interval(), 5);
    EXPECT_EQ(loaded->get_growth_tracker(), 1);
  }
}

TEST(GradScalerTest, RoundTripsThroughAnArchive) {
  const auto options = GradScalerOptions().init_scale(512.0).growth_interval(7).hysteresis(3);
  GradScaler scaler(options);
  scaler.scale(torch::zeros({}));
  scaler.update(64.0);
  std::stringstream file;
  torch::save(scaler, file);
  GradScaler other(GradScalerOptions().hysteresis(3));
  torch::load(other, file);
  EXPECT_EQ(other.get_scale(), 64.0);
  EXPECT_EQ(other.get_growth_interval(), 7);
  EXPECT_EQ(other.state_dict().size(), 6u);

  std::stringstream of_tensor;
  torch::save(torch::ones({2}), of_tensor);
  EXPECT_THROW(torch::load(other, of_tensor), c10::Error);
  EXPECT_EQ(other.get_scale(), 64.0);
}

TEST(GradScalerTest, RefusesAStateThatIsEmptyIncompleteOrOutOfRange) {
  GradScaler scaler;
  const auto good = scaler.state_dict();
  EXPECT_EQ(error_of([&] { scaler.load_state_dict({}); }),
            "GradScaler: the state_dict is empty; it may come from a disabled scaler. Load it only if it has entries, "
            "or save it from an enabled one.");
  auto missing = good;
  missing.erase("growth_factor");
  EXPECT_EQ(error_of<c10::ValueError>([&] { scaler.load_state_dict(missing); }),
            "GradScaler: the state_dict has no entry \"growth_factor\". Pass one that GradScaler's state_dict() "
            "returned.");
  const std::vector<std::pair<std::string, c10::Scalar>> bad_entries = {
      {"scale", 0.0},         {"scale", true},          {"growth_factor", 1.0}, {"backoff_factor", kInf},
      {"growth_interval", 0}, {"growth_interval", 2.5}, {"_growth_tracker", -1}};
  for (const auto& [key, value] : bad_entries) {
    auto bad = good;
    bad[key] = value;
    bad["scale"] = key == "scale" ? value : c10::Scalar(2.0);
    EXPECT_THROW(scaler.load_state_dict(bad), c10::ValueError) << key;
    EXPECT_EQ(scaler.get_scale(), 65536.0) << "nothing has changed";
  }
}

}  // namespace
}  // namespace mezzo
