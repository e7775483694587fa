#include "text/train/background_save.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

namespace mezzo::text {
namespace {

Checkpoint make_checkpoint(const at::Tensor& weights, const at::Tensor& state) {
  Checkpoint checkpoint;
  checkpoint.step = 7;
  checkpoint.weights = {{"weight", weights}};
  checkpoint.optimizer = {{"exp_avg", state}};
  return checkpoint;
}

TEST(BackgroundSaveTest, WritesWhatTensorsWereWhenItBegan) {
  auto weights = at::arange(6, at::kFloat).view({2, 3}).t(), state = at::ones({4});  // one is strided
  const auto expected = weights.clone(), expected_state = state.clone();
  std::promise<void> may_write;
  BackgroundSave saving;
  EXPECT_FALSE(saving.is_under_way());
  Checkpoint checkpoint = make_checkpoint(weights, state);
  saving.begin(checkpoint, [&](const Checkpoint& copy) -> std::string {
    may_write.get_future().wait();
    EXPECT_TRUE(copy.weights.at(0).second.is_contiguous());
    EXPECT_TRUE(at::equal(copy.weights.at(0).second, expected));
    EXPECT_TRUE(at::equal(copy.optimizer.at(0).second, expected_state));
    return "an old one stayed";
  });
  EXPECT_TRUE(saving.is_under_way());
  EXPECT_FALSE(saving.is_done());
  weights.zero_();
  state.zero_();
  may_write.set_value();
  const auto outcome = saving.finish();
  EXPECT_EQ(outcome.step, 7);
  EXPECT_EQ(outcome.error, nullptr);
  EXPECT_EQ(outcome.warning, "an old one stayed");
  EXPECT_FALSE(saving.is_under_way());
}

TEST(BackgroundSaveTest, TellsWhatWentWrongWhenItIsAsked) {
  BackgroundSave saving;
  Checkpoint checkpoint = make_checkpoint(at::ones({2}), at::ones({2}));
  saving.begin(checkpoint, [](const Checkpoint&) -> std::string { throw std::runtime_error("no space left"); });
  const auto outcome = saving.finish();
  ASSERT_NE(outcome.error, nullptr);
  EXPECT_THROW(std::rethrow_exception(outcome.error), std::runtime_error);
  checkpoint = make_checkpoint(at::ones({2}), at::ones({2}));
  saving.begin(checkpoint, [](const Checkpoint&) { return std::string(); });
  EXPECT_EQ(saving.finish().error, nullptr) << "it can be used again";
}

}  // namespace
}  // namespace mezzo::text
