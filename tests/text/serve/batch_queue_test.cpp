#include "text/serve/batch_queue.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace mezzo::text {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;

/// Says of each text its first id, and remembers the batches; waits before each of them until it is let go on.
class Runner : public BatchRunner {
 public:
  explicit Runner(int64_t tokens, bool by_token = false) : tokens_(tokens), by_token_(by_token) {}

  at::Tensor run(const TokenizedTexts& texts) override {
    entered_.set_value();
    std::vector<int32_t> firsts;
    int64_t longest = 0;
    for (const auto& ids : texts.ids) {
      firsts.push_back(ids.front());
      longest = std::max<int64_t>(longest, std::ssize(ids));
    }
    allowed_.get_future().wait();
    allowed_ = {};
    batches.push_back(firsts);
    if (throws) throw std::runtime_error("broken");
    if (!by_token_) return at::tensor(firsts).to(at::kFloat).unsqueeze(1);
    auto outputs = at::zeros({std::ssize(texts.ids), longest, 1});
    for (size_t i = 0; i < texts.ids.size(); ++i) {
      for (size_t t = 0; t < texts.ids[i].size(); ++t) outputs[i][t][0] = texts.ids[i][t];
    }
    return outputs;
  }
  int64_t tokens_of_batch() const override { return tokens_; }

  /// Waits until a batch has begun.
  void await() {
    entered_.get_future().wait();
    entered_ = {};
  }
  /// Lets the batch end that has begun.
  void let_go() { allowed_.set_value(); }

  std::vector<std::vector<int32_t>> batches;
  bool throws = false;

 private:
  int64_t tokens_;
  bool by_token_;
  std::promise<void> entered_, allowed_;
};

/// `count` texts of `length` tokens, all `id`.
TokenizedTexts texts_of(int32_t id, int count, int length = 1) {
  return {.ids = std::vector<std::vector<int32_t>>(count, std::vector<int32_t>(length, id))};
}

class BatchQueueTest : public testing::Test {
 protected:
  std::shared_future<BatchQueue::Result> submit(std::shared_ptr<Runner> runner,
                                                TokenizedTexts texts,
                                                std::chrono::seconds patience = std::chrono::hours(1)) {
    auto promise = std::make_shared<std::promise<BatchQueue::Result>>();
    const bool has_room =
        queue->submit({.runner = std::move(runner),
                       .texts = std::move(texts),
                       .deadline = BatchQueue::Clock::now() + patience,
                       .done = [promise](BatchQueue::Result result) { promise->set_value(std::move(result)); }});
    return has_room ? promise->get_future().share() : std::shared_future<BatchQueue::Result>();
  }
  /// Lets batches end until all are done; how many there were.
  static void run_batches(Runner& runner, int count) {
    for (int i = 0; i < count; ++i) {
      runner.await();
      runner.let_go();
    }
  }

  std::unique_ptr<BatchQueue> queue = std::make_unique<BatchQueue>(100);
};

TEST_F(BatchQueueTest, RequestsThatWaitAreRunTogether) {
  const auto runner = std::make_shared<Runner>(100);
  const auto first = submit(runner, texts_of(1, 1));
  runner->await();  // later requests wait
  const auto second = submit(runner, texts_of(2, 2)), third = submit(runner, texts_of(3, 1));
  runner->let_go();
  run_batches(*runner, 1);
  EXPECT_TRUE(at::equal(first.get().outputs, at::ones({1, 1})));
  EXPECT_TRUE(at::equal(second.get().outputs, at::full({2, 1}, 2.F)));
  EXPECT_TRUE(at::equal(third.get().outputs, at::full({1, 1}, 3.F)));
  EXPECT_THAT(runner->batches, ElementsAre(ElementsAre(1), ElementsAre(2, 2, 3)));
  const auto counts = queue->counts();
  EXPECT_EQ(counts.batches, 2);
  EXPECT_EQ(counts.texts, 4);
  EXPECT_EQ(counts.waiting_texts, 0);
}

TEST_F(BatchQueueTest, ShortRequestsPassLongOnes) {
  const auto runner = std::make_shared<Runner>(8);
  const auto first = submit(runner, texts_of(1, 1));
  runner->await();
  const auto many = submit(runner, texts_of(2, 32)), one = submit(runner, texts_of(3, 1));
  runner->let_go();
  run_batches(*runner, 1);
  one.get();  // after the first batch that it could be in
  EXPECT_THAT(runner->batches.back(), ElementsAre(2, 2, 2, 2, 2, 2, 2, 3));
  run_batches(*runner, 4);
  EXPECT_TRUE(at::equal(many.get().outputs, at::full({32, 1}, 2.F)));
}

TEST_F(BatchQueueTest, EveryModelGetsItsTurn) {
  const auto left = std::make_shared<Runner>(4), right = std::make_shared<Runner>(4);
  const auto begin = submit(left, texts_of(1, 1));
  left->await();
  const auto many = submit(left, texts_of(2, 40)), one = submit(right, texts_of(3, 1));
  left->let_go();
  run_batches(*left, 1);
  run_batches(*right, 1);
  one.get();
  run_batches(*left, 9);
  EXPECT_EQ(many.get().outputs.size(0), 40);
}

TEST_F(BatchQueueTest, ATextThatIsLongerThanABatchIsOne) {
  const auto runner = std::make_shared<Runner>(8);
  const auto begin = submit(runner, texts_of(1, 1));
  runner->await();
  const auto others = submit(runner, texts_of(2, 6, 3)), longer = submit(runner, texts_of(4, 1, 50));
  runner->let_go();
  for (int i = 0; i < 4; ++i) run_batches(*runner, 1);
  EXPECT_EQ(longer.get().outputs.item<float>(), 4);
  EXPECT_EQ(others.get().outputs.sum().item<float>(), 12);
  for (const auto& batch : runner->batches) EXPECT_THAT(batch, testing::AnyOf(ElementsAre(4), Each(testing::Ne(4))));
}

TEST_F(BatchQueueTest, RowsOfTokensGoToTheirTexts) {
  const auto runner = std::make_shared<Runner>(100, /*by_token=*/true);
  const auto first = submit(runner, texts_of(1, 1));
  runner->await();
  TokenizedTexts mixed = texts_of(2, 1, 2);
  append(mixed, texts_of(3, 1, 4));
  const auto longer = submit(runner, std::move(mixed)), shorter = submit(runner, texts_of(5, 1, 3));
  runner->let_go();
  run_batches(*runner, 1);
  EXPECT_TRUE(
      at::equal(longer.get().outputs.squeeze(2), at::tensor({2.F, 2.F, 0.F, 0.F, 3.F, 3.F, 3.F, 3.F}).view({2, 4})));
  EXPECT_TRUE(at::equal(shorter.get().outputs.squeeze(2), at::full({1, 3}, 5.F)));
}

TEST_F(BatchQueueTest, AFullQueueRefusesAndALoneRequestMayBeLarge) {
  const auto runner = std::make_shared<Runner>(1000);
  const auto large = submit(runner, texts_of(1, 500));
  ASSERT_TRUE(large.valid());
  runner->await();
  EXPECT_FALSE(submit(runner, texts_of(2, 1)).valid());
  runner->let_go();
  large.get();
  while (queue->counts().waiting_texts > 0) std::this_thread::yield();
  const auto next = submit(runner, texts_of(3, 99));
  runner->await();
  const auto last = submit(runner, texts_of(4, 1));
  EXPECT_TRUE(next.valid() && last.valid());
  EXPECT_FALSE(submit(runner, texts_of(5, 1)).valid());
  runner->let_go();
  run_batches(*runner, 1);
  EXPECT_EQ(last.get().error, nullptr);
}

TEST_F(BatchQueueTest, WhatIsLateIsGivenUpBetweenBatches) {
  const auto runner = std::make_shared<Runner>(4);
  const auto begin = submit(runner, texts_of(1, 1));
  runner->await();
  const auto late = submit(runner, texts_of(2, 8), std::chrono::seconds(0)), other = submit(runner, texts_of(3, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  runner->let_go();
  run_batches(*runner, 1);
  EXPECT_THROW(std::rethrow_exception(late.get().error), DeadlineError);
  EXPECT_EQ(other.get().error, nullptr);
  EXPECT_THAT(runner->batches, ElementsAre(ElementsAre(1), ElementsAre(3)));
}

TEST_F(BatchQueueTest, AFailedBatchFailsItsRequestsAlone) {
  const auto runner = std::make_shared<Runner>(4);
  runner->throws = true;
  const auto failed = submit(runner, texts_of(1, 8));
  runner->await();
  const auto next = submit(runner, texts_of(2, 1));
  runner->let_go();
  EXPECT_THROW(std::rethrow_exception(failed.get().error), std::runtime_error);
  runner->await();
  runner->throws = false;
  runner->let_go();
  EXPECT_EQ(next.get().error, nullptr);
  EXPECT_THAT(runner->batches, SizeIs(2)) << "what a failed request has left is not run";
}

TEST_F(BatchQueueTest, WhatWaitsFailsWhenItIsStopped) {
  const auto runner = std::make_shared<Runner>(4);
  const auto running = submit(runner, texts_of(1, 4));
  runner->await();
  const auto waiting = submit(runner, texts_of(2, 4));
  auto* const stopped = queue.release();
  std::thread stopping([&] { delete stopped; });
  while (stopped->submit({.runner = runner, .texts = texts_of(3, 0), .deadline = {}, .done = [](auto) {}})) {
    std::this_thread::yield();  // it refuses all once it is stopping
  }
  runner->let_go();
  stopping.join();
  EXPECT_EQ(running.get().error, nullptr);
  EXPECT_NE(waiting.get().error, nullptr);
}

}  // namespace
}  // namespace mezzo::text
