#include "kernels/cpu/share_out.h"

#include <gtest/gtest.h>

#include <random>

namespace mezzo::kernels::cpu {
namespace {

class ShareOutTest : public testing::Test {
 protected:
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  int threads_ = at::get_num_threads();
};

TEST_F(ShareOutTest, EveryTaskIsDoneOnce) {
  std::mt19937 random(5);
  const auto draw = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  for (int round = 0; round < 300; ++round) {
    at::set_num_threads(static_cast<int>(1 + draw(3)));
    SCOPED_TRACE(testing::Message() << "round " << round << ", " << at::get_num_threads() << " threads");
    std::vector<int64_t> ends;
    int64_t count = 0;
    for (int t = 0; t < at::get_num_threads(); ++t) {
      ends.push_back(count += draw(2) * draw(40));
    }
    std::vector<std::atomic<int>> times(count);
    const auto work = [&](const auto& next) {
      for (int64_t task = next(); task >= 0; task = next()) {
        ++times.at(task);
      }
    };
    round % 2 == 0 ? share_out(ends, work) : share_out(count, work);
    for (int64_t task = 0; task < count; ++task) {
      EXPECT_EQ(times[task], 1) << "task " << task;
    }
  }
}

TEST_F(ShareOutTest, AThreadTakesItsOwnInOrderAndThenOthersFromTheirEnds) {
  at::set_num_threads(1);  // the first of three does it all
  std::vector<int64_t> taken;
  share_out({2, 5, 9}, [&](const auto& next) {
    for (int64_t task = next(); task >= 0; task = next()) {
      taken.push_back(task);
    }
  });
  EXPECT_EQ(taken, (std::vector<int64_t>{0, 1, 4, 3, 2, 8, 7, 6, 5}));
}

}  // namespace
}  // namespace mezzo::kernels::cpu
