#include "text/launch/launch_round.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

namespace mezzo::text {
namespace {

using namespace std::chrono_literals;

/// A rank whose peer has died often fails within milliseconds, and may be seen first.
constexpr auto kSettleTime = 200ms;
/// For processes that a rank leaves behind when it ends well.
constexpr auto kLeftoverTime = 1s;

/// A rank that aborts does so by itself, as one that exits with 1; other signals come
/// from outside or from a bug.
bool is_struck_down(const ProcessEnd& end) { return end.by_signal && end.value != SIGABRT; }

/// What goes on a rank's stdin. A process in the background must not read from the terminal.
UniqueFd open_stdin(bool is_first) {
  const bool pass_on = is_first && ::isatty(STDIN_FILENO) == 0;
  return UniqueFd(pass_on ? ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

LaunchRound::LaunchRound(const LaunchOptions& options,
                         RankOutput& output,
                         SignalPipe& signals,
                         GroupGuard& guard,
                         const NodeRendezvous* nodes)
    : options_(options), output_(output), signals_(signals), guard_(guard), nodes_(nodes) {
  ranks_.reserve(static_cast<size_t>(options.nproc()));
}

LaunchRound::~LaunchRound() {
  for (const Rank& rank : ranks_) {
    guard_.forget(rank.process.pid());
  }
}

RoundResult LaunchRound::run(const LaunchAttempt& attempt) {
  start(attempt);
  while (!all_are_gone()) {
    wait();
    for (const int signal : signals_.take()) {
      heed(signal);
    }
    output_.service();
    for (Rank& rank : ranks_) {
      watch(rank);
    }
    heed_time();
    if (nodes_ != nullptr) heed_nodes(attempt.restart_count);
  }
  output_.close_ranks();
  return result();
}

void LaunchRound::start(const LaunchAttempt& attempt) {
  const bool is_restart = attempt.restart_count > 0 && !options_.restart_command().empty();
  const auto& command = is_restart ? options_.restart_command() : options_.command();
  for (int64_t local_rank = 0; local_rank < attempt.nproc; ++local_rank) {
    const int64_t rank = attempt.node_rank * attempt.nproc + local_rank;
    const auto files = output_.add_rank(rank, /*draws=*/local_rank == 0);
    const auto in = open_stdin(rank == 0);
    ranks_.push_back({rank, ChildProcess(command, rank_environment(options_, attempt, local_rank),
                                         {in.get(), files.out.get(), files.err.get()})});
    guard_.watch(ranks_.back().process.pid());
  }
}

void LaunchRound::wait() {
  std::vector<pollfd> files = {{signals_.fd(), POLLIN, 0}};
  output_.add_to(files);
  int timeout = nodes_ != nullptr ? kNodesInterval : -1;
  for (const auto& deadline : {settle_at_, kill_at_}) {
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
      const int rounded = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
      timeout = timeout < 0 ? rounded : std::min(timeout, rounded);
    }
  }
  ::poll(files.data(), files.size(), timeout);
}

void LaunchRound::heed(int signal) {
  if (signal == SIGWINCH) {
    output_.resize();
  }
  if (signal == SIGCHLD || signal == SIGWINCH) {
    return;
  }
  if (signal_ != 0 && signal == SIGHUP) {
    return;  // shell and kernel both send it when a terminal is closed, service managers after SIGTERM
  }
  if (signal_ != 0) {
    output_.note(signal_name(signal) + " again: the ranks are killed");
    kill_ranks();
    return;
  }
  signal_ = signal;
  if (is_ending_) {
    return;
  }
  // A service manager sends the signal to all processes at once, so ranks may
  // have ended by it already.
  std::erase_if(failed_, [&](const Rank* rank) { return rank->process.end()->status() == 128 + signal; });
  if (!failed_.empty()) {
    settle();
    return;
  }
  settle_at_.reset();
  output_.note(signal == SIGHUP ? "SIGHUP: the ranks get SIGTERM; SIGTERM or SIGINT to the launcher kills them"
                                : signal_name(signal) + ": passed on to the ranks; a second one kills them");
  // One whose terminal is gone could not save its work after SIGHUP.
  end_ranks(signal == SIGHUP ? SIGTERM : signal, options_.grace_seconds());
}

void LaunchRound::watch(Rank& rank) {
  const std::string who = c10::str("rank ", rank.rank, " (pid ", rank.process.pid(), ")");
  for (auto change = rank.process.next_change(); change != ChildProcess::Change::kNone;
       change = rank.process.next_change()) {
    const bool was_stopped = std::exchange(rank.is_stopped, change == ChildProcess::Change::kStopped);
    if (is_ending_) {
      continue;
    }
    if (rank.is_stopped) {
      output_.note(
          c10::str(who, " is stopped by ", signal_name(rank.process.stop_signal()), "; the others wait for it"));
    } else if (was_stopped && change == ChildProcess::Change::kContinued) {
      output_.note(who + " goes on");
    } else if (change == ChildProcess::Change::kEnded && !rank.process.end()->is_success()) {
      failed_.push_back(&rank);
      settle_at_ = settle_at_.value_or(Clock::now() + kSettleTime);
    }
  }
}

void LaunchRound::heed_time() {
  const bool have_ended = all_have_ended();
  if (settle_at_ && (have_ended || Clock::now() >= *settle_at_)) {
    settle();
  }
  if (have_ended && !kill_at_ && !is_killed_) {
    kill_at_ = Clock::now() + kLeftoverTime;
  }
  if (kill_at_ && Clock::now() >= *kill_at_) {
    for (const Rank& rank : ranks_) {
      if (!rank.process.end()) {
        output_.note(c10::str("rank ", rank.rank, " (pid ", rank.process.pid(), ") did not end by ", ended_by_,
                              " in time, and is killed"));
      }
    }
    kill_ranks();
  }
}

/// Ends the ranks after another node has failed.
void LaunchRound::heed_nodes(int64_t start) {
  if (is_ending_ || settle_at_) return;
  const NodePlan plan = nodes_->plan();
  if (plan.failure && (plan.is_over || plan.failure->start >= start)) {
    other_node_ = plan.failure;
  } else if (plan.start > start) {
    other_node_ = NodeFailure{start, 1, false, "the other nodes went on without this node"};
  }
  if (other_node_) {
    end_ranks(SIGTERM, options_.failure_grace_seconds());
  }
}

/// Decides which rank failed first, and ends the others.
void LaunchRound::settle() {
  settle_at_.reset();
  const auto struck = std::find_if(failed_.begin(), failed_.end(),
                                   [](const Rank* rank) { return is_struck_down(*rank->process.end()); });
  culprit_ = struck != failed_.end() ? *struck : failed_.front();
  end_ranks(SIGTERM, options_.failure_grace_seconds());
}

void LaunchRound::end_ranks(int signal, double grace_seconds) {
  is_ending_ = true;
  ended_by_ = signal_name(signal);
  kill_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(grace_seconds));
  for (const Rank& rank : ranks_) {
    rank.process.signal_group(signal);
    if (rank.is_stopped) {
      rank.process.signal_group(SIGCONT);  // a stopped process handles no other signal before
    }
  }
}

void LaunchRound::kill_ranks() {
  is_ending_ = true;
  is_killed_ = true;
  kill_at_.reset();
  for (const Rank& rank : ranks_) {
    rank.process.signal_group(SIGKILL);
  }
}

bool LaunchRound::all_have_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.process.end().has_value(); });
}

bool LaunchRound::all_are_gone() {
  if (settle_at_ || !all_have_ended()) {
    return false;
  }
  bool all = true;
  for (Rank& rank : ranks_) {
    all = rank.process.group_is_gone() && all;
  }
  return all;
}

RoundResult LaunchRound::result() const {
  RoundResult result;
  result.signal = signal_;
  const bool all_succeeded =
      std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.process.end()->is_success(); });
  if (culprit_ != nullptr) {
    result.status = culprit_->process.end()->status();
    result.failure = describe_failure();
    const auto struck =
        std::ranges::count_if(failed_, [](const Rank* rank) { return is_struck_down(*rank->process.end()); });
    result.lost = std::max<int64_t>(struck, 1);  // others fail as they lose it
  } else if (other_node_ && !all_succeeded) {
    result = {other_node_->status, signal_, false, other_node_->message, 0, true};
  } else if (!all_succeeded) {
    result.status = 128 + signal_;
  }
  result.output_lost = output_.is_broken() && result.status == 128 + SIGPIPE;
  return result;
}

std::string LaunchRound::describe_failure() const {
  const ProcessEnd& end = *culprit_->process.end();
  std::string text = c10::str("rank ", culprit_->rank, " (pid ", culprit_->process.pid(), ") ", end.to_string());
  const std::string last = output_.last_error_line(culprit_->rank);
  if (!is_struck_down(end) && !last.empty()) {
    text += "; it said: " + last;
  }
  return text;
}

}  // namespace mezzo::text
