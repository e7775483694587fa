#include "text/launch/node_rendezvous.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

namespace mezzo::text {
namespace {

using namespace std::chrono_literals;

/// Holds up the first report of a failure until `go` is set.
class SlowStore : public c10d::HashStore {
 public:
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    HashStore::set(key, value);
    if (!is_held_ && std::string(value.begin(), value.end()).find("rank 1 is dead") != std::string::npos) {
      is_held_ = true;
      held.set_value();
      go.get_future().wait();
    }
  }

  std::promise<void> held, go;

 private:
  bool is_held_ = false;
};

TEST(NodeRendezvousTest, LeavesOnlyAfterNodeZeroCanKnowIt) {
  const auto store = c10::make_intrusive<SlowStore>();
  const std::string plan = R"([[0, [0, 1], null, false], "id"])";
  store->set("launchers/plan", {plan.begin(), plan.end()});
  const auto options = LaunchOptions({"true"}).nnodes(2).node_rank(1);
  {
    NodeRendezvous nodes(options, store, "");
    while (nodes.plan().start < 0) std::this_thread::sleep_for(1ms);
    nodes.fail({0, 1, false, "rank 1 is dead"});
    store->held.get_future().wait();
    const auto later = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(100ms);  // leave() waits by then
      store->go.set_value();
    });
    nodes.leave(1);
  }
  const auto report = store->get("launchers/node/1");
  EXPECT_EQ(nlohmann::json::parse(report).at(4), 1);
}

}  // namespace
}  // namespace mezzo::text
