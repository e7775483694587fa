#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/text/launch/launcher.h"
#include "text/launch/child_process.h"
#include "text/launch/group_guard.h"
#include "text/launch/launch_environment.h"
#include "text/launch/node_rendezvous.h"
#include "text/launch/rank_output.h"
#include "text/launch/signal_pipe.h"

namespace mezzo::text {

/// How one start of all ranks came out.
struct RoundResult {
  int status = 0;              ///< as launch() returns it
  int signal = 0;              ///< that asked to end, or 0
  bool output_lost = false;    ///< a rank ended because nobody reads its output any more
  std::string failure;         ///< which rank failed first and why; empty for none
  int64_t lost = 0;            ///< ranks that failed by themselves
  bool of_other_node = false;  ///< the failure is another node's
};

/// One start of all ranks of this node, until the last has ended.
class LaunchRound {
 public:
  /// @param nodes  null for one node
  LaunchRound(const LaunchOptions& options,
              RankOutput& output,
              SignalPipe& signals,
              GroupGuard& guard,
              const NodeRendezvous* nodes);
  ~LaunchRound();
  LaunchRound(const LaunchRound&) = delete;
  LaunchRound& operator=(const LaunchRound&) = delete;

  /// @throws c10::Error  when the command cannot be run.
  RoundResult run(const LaunchAttempt& attempt);

 private:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    int64_t rank;
    ChildProcess process;
    bool is_stopped = false;
  };

  void start(const LaunchAttempt& attempt);
  void wait();
  void heed(int signal);
  void watch(Rank& rank);
  void heed_time();
  void heed_nodes(int64_t start);
  void settle();
  void end_ranks(int signal, double grace_seconds);
  void kill_ranks();
  bool all_have_ended() const;
  bool all_are_gone();
  RoundResult result() const;
  std::string describe_failure() const;

  const LaunchOptions& options_;
  RankOutput& output_;
  SignalPipe& signals_;
  GroupGuard& guard_;
  const NodeRendezvous* nodes_;
  std::vector<Rank> ranks_;
  std::vector<const Rank*> failed_;  ///< by themselves, in the order in which it was seen
  const Rank* culprit_ = nullptr;
  std::optional<NodeFailure> other_node_;       ///< why node 0 ended this start
  std::optional<Clock::time_point> settle_at_;  ///< when to decide which rank failed first
  std::optional<Clock::time_point> kill_at_;
  bool is_ending_ = false;
  bool is_killed_ = false;
  int signal_ = 0;
  std::string ended_by_;  ///< the signal that the ranks were asked to end with
};

}  // namespace mezzo::text
