#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace mezzo::distributed {

/// Tells the other ranks through the store, from a separate thread, that this rank is alive, and
/// finds ranks that are not. Thread-safe: what several callers ask for is done one after the other.
class Heartbeat {
 public:
  /// What became of the other ranks.
  struct Census {
    bool store_answers = false;
    std::map<int, std::string> failed;   ///< ranks that failed by themselves, and the reasons
    std::map<int, std::string> silent;   ///< other ranks without heartbeat, and their hosts
    std::map<int, std::string> gave_up;  ///< ranks that ended because of others, and whom they blamed
  };

  /// @param store  shared with nobody: a read of it may block for long.
  /// @param home  place of this rank, for the messages of others.
  Heartbeat(c10::intrusive_ptr<c10d::Store> store,
            int rank,
            int world_size,
            std::string home,
            std::chrono::milliseconds interval);
  /// Announcements already made still get out. Does not wait long for the thread, which a network that is gone may hold
  /// up.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Leaves word why this rank fails, or whom it blames for having to give up.
  void announce_failure(const std::string& message) { announce("failed/", message); }
  void announce_giving_up(const std::string& message) { announce("gave_up/", message); }

  /// Watches the others for three beats.
  Census take_census();

 private:
  void announce(const char* kind, const std::string& message);

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace mezzo::distributed
