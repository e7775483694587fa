#include "distributed/group/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace mezzo::distributed {
namespace {

using testing::ElementsAre;
using testing::Pair;

constexpr std::chrono::milliseconds kLong(500);  // between beats: no machine is so slow that it misses three
constexpr std::chrono::minutes kPatience(1);     // after which a test fails rather than waits on

/// A store that can be made to keep its callers waiting, as one across a slow network does.
class SlowStore : public c10d::HashStore {
 public:
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_ || is_broken_; });
    --waiting_;
    if (is_broken_) {
      throw std::runtime_error("the store is gone");
    }
    lock.unlock();
    c10d::HashStore::set(key, value);
  }

  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  /// Current and later waits get an error.
  void break_down() {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
  }
  void wait_for_a_caller() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return waiting_ > 0; }));
  }

  std::string text(const std::string& key) {
    const auto bytes = check({key}) ? get(key) : std::vector<uint8_t>();
    return {bytes.begin(), bytes.end()};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
  bool is_broken_ = false;
  int waiting_ = 0;
};

class HeartbeatTest : public testing::Test {
 protected:
  Heartbeat beat(int rank, std::chrono::milliseconds interval) const { return {store_, rank, 2, "home", interval}; }
  void wait_for(const std::vector<std::string>& keys) const { EXPECT_NO_THROW(store_->wait(keys, kPatience)); }

  c10::intrusive_ptr<SlowStore> store_ = c10::make_intrusive<SlowStore>();
};

TEST_F(HeartbeatTest, TellsWhatBecameOfOthers) {
  Heartbeat here = beat(0, kLong);
  {
    Heartbeat there = beat(1, kLong);
    wait_for({"beat/0", "beat/1"});
    EXPECT_THAT(here.take_census().silent, ElementsAre());
  }
  EXPECT_THAT(here.take_census().silent, ElementsAre(Pair(1, "home")));
  Heartbeat again = beat(1, kLong);
  again.announce_failure("no such file");
  EXPECT_THAT(here.take_census().failed, ElementsAre(Pair(1, "no such file")));
}

TEST_F(HeartbeatTest, GetsEveryAnnouncementOutThoughTheStoreIsSlowAndTheRankLeaves) {
  {
    Heartbeat heartbeat = beat(1, std::chrono::milliseconds(100));
    wait_for({"beat/1"});
    store_->close();
    store_->wait_for_a_caller();
    heartbeat.announce_failure("first");
    heartbeat.announce_giving_up("second");
  }
  store_->open();
  wait_for({"failed/1", "gave_up/1"});
  EXPECT_EQ(store_->text("failed/1"), "first");
  EXPECT_EQ(store_->text("gave_up/1"), "second");
}

TEST_F(HeartbeatTest, ServesAllWhoAskAtOnce) {
  store_->c10d::Store::set("beat/1", "1 home");
  Heartbeat heartbeat = beat(0, kLong);
  wait_for({"beat/0"});
  store_->close();
  store_->wait_for_a_caller();
  std::thread asker([&] { EXPECT_TRUE(heartbeat.take_census().store_answers); });
  heartbeat.announce_failure("no such file");  // returns when it has waited in vain; both were asked for by then
  store_->open();
  asker.join();
  wait_for({"failed/0"});
}

TEST_F(HeartbeatTest, KeepsNobodyWaitingForAStoreThatIsGone) {
  store_->close();
  Heartbeat heartbeat = beat(0, std::chrono::seconds(10));
  store_->wait_for_a_caller();
  std::thread breaker([&] {
    std::this_thread::sleep_for(kLong);  // so that the census is asked for by then
    store_->break_down();
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(heartbeat.take_census().store_answers);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience);  // it would wait for 80 seconds
  breaker.join();
}

}  // namespace
}  // namespace mezzo::distributed
