#include "text/launch/node_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace mezzo::text {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;

/// Three nodes that beat once a second, unless they are silent.
class NodeAgreementTest : public testing::Test {
 protected:
  const NodePlan& pass(int count = 1) {
    for (int i = 1; i < count; ++i) pass();
    now_ += seconds(1);
    for (auto& [node, report] : reports_) report.beat += node == silent_ ? 0 : 1;
    return agreement_.decide(reports_, now_);
  }

  /// All nodes have come, and their ranks run.
  void begin() {
    reports_ = {{0, {}}, {1, {}}, {2, {}}};
    ASSERT_THAT(pass().nodes, ElementsAre(0, 1, 2));
  }

  void fail(int64_t node, int64_t start, int status, bool is_final = false) {
    reports_[node].failure = NodeFailure{start, status, is_final, "rank 7 is dead"};
  }

  void be_ready(int64_t start) {
    for (auto& [node, report] : reports_) report.ready = start;
  }

  LaunchOptions options_ =
      LaunchOptions({"true"}).nnodes(3).min_nnodes(2).max_restarts(2).node_timeout_seconds(10).join_seconds(60);
  std::chrono::steady_clock::time_point now_{};
  NodeAgreement agreement_{options_, now_};
  std::map<int64_t, NodeReport> reports_ = {{0, {}}};
  int64_t silent_ = -1;
};

TEST_F(NodeAgreementTest, WaitsForAllNodesAndThenForTheFewestOnes) {
  reports_[2] = {};
  EXPECT_EQ(pass(59).start, -1);
  EXPECT_EQ(pass().start, 0);
  EXPECT_THAT(pass().nodes, ElementsAre(0, 2));
}

TEST_F(NodeAgreementTest, EndsWhereTooFewNodesCome) {
  EXPECT_FALSE(pass(59).is_over);
  EXPECT_TRUE(pass().is_over);
  EXPECT_EQ(pass().failure->message, "waited 60 s; 1 of 3 nodes are here, at least 2 are needed");
}

TEST_F(NodeAgreementTest, StartsAgainWhenTheRanksOfAllNodesHaveEnded) {
  begin();
  fail(1, 0, 9);
  EXPECT_EQ(pass().failure->message, "node 1: rank 7 is dead");
  reports_[0].ready = reports_[1].ready = 1;
  EXPECT_EQ(pass().start, 0) << "node 2 is still ending its ranks";
  be_ready(1);
  EXPECT_EQ(pass().start, 1);
  EXPECT_THAT(pass().nodes, ElementsAre(0, 1, 2));
  EXPECT_FALSE(pass().failure) << "that was the failure of an earlier start";
}

TEST_F(NodeAgreementTest, GoesOnWithoutANodeThatIsLostAndTakesItBackLater) {
  begin();
  silent_ = 2;
  EXPECT_FALSE(pass(9).failure);
  EXPECT_EQ(pass().failure->message, "node 2 has not answered for 10 s");
  be_ready(1);
  EXPECT_THAT(pass().nodes, ElementsAre(0, 1));
  silent_ = -1;
  EXPECT_EQ(pass().start, 1) << "a node that is back waits for the next start";
  fail(0, 1, 1);
  pass();
  be_ready(2);
  EXPECT_THAT(pass().nodes, ElementsAre(0, 1, 2));
}

TEST_F(NodeAgreementTest, StartsAgainWithALauncherThatCameBackBeforeItWasMissed) {
  begin();
  reports_[2] = {0, 1, -1, std::nullopt, std::nullopt};
  EXPECT_EQ(pass().failure->message, "the ranks of node 2 have ended");
  be_ready(1);
  EXPECT_THAT(pass().nodes, ElementsAre(0, 1, 2));
  EXPECT_FALSE(pass().failure);
}

TEST_F(NodeAgreementTest, GoesOnWithoutANodeThatWasStopped) {
  begin();
  reports_[1].left = 143;
  EXPECT_EQ(pass().failure->message, "node 1 has ended");
  be_ready(1);
  EXPECT_THAT(pass().nodes, ElementsAre(0, 2));
}

TEST_F(NodeAgreementTest, EndsWhenRestartsOrNodesAreUsedUp) {
  begin();
  fail(1, 0, 9, /*is_final=*/true);
  EXPECT_TRUE(pass().is_over);
  EXPECT_EQ(pass().failure->status, 9);
}

TEST_F(NodeAgreementTest, EndsAfterTheLastRestart) {
  begin();
  for (int start = 0; start < 3; ++start) {
    EXPECT_FALSE(pass().is_over) << start;
    fail(0, start, 4);
    EXPECT_EQ(pass().is_over, start == 2) << start;
    be_ready(start + 1);
    EXPECT_EQ(pass().start, std::min(start + 1, 2));
  }
}

TEST_F(NodeAgreementTest, EndsWithFewerNodesThanAreNeeded) {
  begin();
  reports_[1].left = 1;
  reports_[2].left = 1;
  pass();
  be_ready(1);
  EXPECT_TRUE(pass().is_over);
  EXPECT_EQ(pass().failure->message, "node 1 has ended; 1 of 3 nodes are here, at least 2 are needed");
}

TEST_F(NodeAgreementTest, EndsWhenAllNodesHaveSucceeded) {
  begin();
  reports_[0].succeeded = reports_[2].succeeded = 0;
  EXPECT_FALSE(pass().is_over);
  reports_[1].succeeded = 0;
  EXPECT_TRUE(pass().is_over);
  EXPECT_FALSE(pass().failure);
  reports_[0].left = 0;
  reports_[1].left = 143;
  EXPECT_FALSE(pass(20).failure) << "that is decided";
}

TEST_F(NodeAgreementTest, ANodeThatHasSucceededStartsAgainAfterAFailureElsewhere) {
  begin();
  reports_[1].succeeded = 0;
  fail(2, 0, 9);
  pass();
  be_ready(1);
  EXPECT_THAT(pass().nodes, ElementsAre(0, 1, 2));
  reports_[0].succeeded = reports_[2].succeeded = 1;
  EXPECT_FALSE(pass().is_over) << "node 1 succeeded in an earlier start";
}

TEST_F(NodeAgreementTest, ANodeThatHasSucceededMayBeStoppedOrLost) {
  begin();
  reports_[1].succeeded = reports_[2].succeeded = 0;
  reports_[1].left = 143;
  silent_ = 2;
  EXPECT_FALSE(pass(20).failure);
  reports_[0].succeeded = 0;
  EXPECT_TRUE(pass().is_over);
  EXPECT_FALSE(pass().failure);
}

TEST_F(NodeAgreementTest, EndsAfterAFailureWhenNode0WasStopped) {
  begin();
  reports_[0].succeeded = 0;
  reports_[0].left = 0;
  EXPECT_FALSE(pass().is_over);
  fail(1, 0, 9);
  EXPECT_TRUE(pass().is_over);
  EXPECT_EQ(pass().failure->status, 9);
}

TEST_F(NodeAgreementTest, NodesThatEndWellFailNothing) {
  begin();
  reports_[1].left = 0;
  EXPECT_FALSE(pass(20).failure);
  EXPECT_TRUE(agreement_.others_are_here(reports_));
  reports_[2].left = 0;
  EXPECT_FALSE(agreement_.others_are_here(reports_));
}

TEST_F(NodeAgreementTest, TheEndOfNode0EndsAll) {
  begin();
  reports_[0].left = 130;
  EXPECT_TRUE(pass().is_over);
  EXPECT_EQ(pass().failure->status, 130);
}

}  // namespace
}  // namespace mezzo::text
