#include "mezzo/text/launch/launcher.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include "distributed/group/hosted_store.h"
#include "mezzo/text/io/error_message.h"
#include "mezzo/text/io/failure_record.h"
#include "text/launch/launch_round.h"

namespace mezzo::text {
namespace {

constexpr int64_t kMostRanks = 1024;  // of a node: far more than any has processors or GPUs for
constexpr int64_t kMostPorts = std::numeric_limits<uint16_t>::max();

void check_at_least(const char* name, int64_t value, int64_t least) {
  TORCH_CHECK_VALUE(value >= least, name, " is ", value, ", expected at least ", least);
}

void check_seconds(const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value <= 1e6, name, " is ", value, " seconds, expected 0 to 1e+06");
}

void check(const LaunchOptions& options) {
  TORCH_CHECK_VALUE(!options.command().empty(), "there is no command to launch");
  TORCH_CHECK_VALUE(options.nproc() >= 1 && options.nproc() <= kMostRanks, "nproc is ", options.nproc(),
                    ", expected 1 to ", kMostRanks);
  check_at_least("nnodes", options.nnodes(), 1);
  check_at_least("max_restarts", options.max_restarts(), 0);
  TORCH_CHECK_VALUE(options.min_nproc() >= 0 && options.min_nproc() <= options.nproc(), "min_nproc is ",
                    options.min_nproc(), ", expected 0 to ", options.nproc(), ", nproc");
  TORCH_CHECK_VALUE(options.min_nproc() == 0 || options.nnodes() == 1, "min_nproc is ", options.min_nproc(),
                    ", expected 0 for several nodes");
  TORCH_CHECK_VALUE(options.min_nnodes() >= 0 && options.min_nnodes() <= options.nnodes(), "min_nnodes is ",
                    options.min_nnodes(), ", expected 0 to ", options.nnodes(), ", nnodes");
  TORCH_CHECK_VALUE(options.min_nproc() == 0 || options.min_nproc() == options.nproc() || options.max_restarts() > 0,
                    "max_restarts is 0, expected 1 or more: only a restart can have fewer than ", options.nproc(),
                    " ranks");
  TORCH_CHECK_VALUE(options.node_rank() >= 0 && options.node_rank() < options.nnodes(), "node_rank is ",
                    options.node_rank(), ", expected 0 to ", options.nnodes() - 1, ": nnodes is ", options.nnodes());
  check_seconds("grace_seconds", options.grace_seconds());
  check_seconds("failure_grace_seconds", options.failure_grace_seconds());
  check_seconds("node_timeout_seconds", options.node_timeout_seconds());
  check_seconds("join_seconds", options.join_seconds());
  const bool has_master = !options.master_addr().empty();
  TORCH_CHECK_VALUE(has_master || options.nnodes() == 1, "with ", options.nnodes(),
                    " nodes master_addr and master_port are needed, to reach node 0");
  const int64_t highest = kMostPorts - (options.nnodes() > 1 ? 1 + options.max_restarts() : 0);
  TORCH_CHECK_VALUE(!has_master || (options.master_port() >= 1 && options.master_port() <= highest), "master_port is ",
                    options.master_port(), ", expected 1 to ", highest);
}

/// Orphans of ranks become children of this process, so that it sees them end.
class Subreaper {
 public:
  Subreaper() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

/// So that no pipe of ours can get the number of a standard file that this
/// process was started without.
void open_standard_files() {
  int fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) {
    fd = ::open("/dev/null", O_RDWR);
  }
  if (fd >= 0) {
    ::close(fd);
  }
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options)
      : options_(options), guard_(static_cast<size_t>(options.nproc())), output_(options.name()) {}

  int run() {
    const RoundResult result = options_.nnodes() == 1 ? run_alone() : run_with_nodes();
    if (!result.failure.empty()) {
      output_.note(result.failure);
      record_failure(options_.name() + ": " + result.failure);
    }
    flush();
    return result.status == 0 && output_.has_lost_output() ? 1 : result.status;
  }

 private:
  RoundResult run_alone() {
    int64_t nproc = options_.nproc();
    for (int64_t restarts = 0;; ++restarts) {
      const RoundResult result = run_round({"", 0, restarts, nproc, 1, 0, id_}, nullptr);
      if (restarts == options_.max_restarts() || !may_restart(result)) {
        return result;
      }
      if (options_.min_nproc() > 0) {
        nproc = std::max(nproc - result.lost, options_.min_nproc());
      }
      note_restart(result.failure, nproc, options_.nproc(), "ranks", restarts + 1);
    }
  }

  /// Node 0 decides which nodes take part in a start, and whether there is one more.
  RoundResult run_with_nodes() {
    std::optional<distributed::HostedStore> store;
    if (options_.node_rank() == 0) store = distributed::host_store(options_.master_port());
    NodeRendezvous nodes(options_, store ? store->store : nullptr, id_);
    RoundResult result;
    try {
      result = run_starts(nodes);
    } catch (const std::exception& error) {
      nodes.fail({nodes.plan().start, 1, false, message_of(error)});
      leave(nodes, 1);
      throw;
    }
    leave(nodes, result.status);
    return result;
  }

  RoundResult run_starts(NodeRendezvous& nodes) {
    RoundResult result;
    for (int64_t start = 0;; ++start) {
      nodes.be_ready(start);
      const NodePlan plan = await_start(nodes);
      if (stopped_by_ != 0) return stopped();
      if (plan.is_over) return failed(plan, result);
      if (start > 0) {
        note_restart(result.failure, static_cast<int64_t>(plan.nodes.size()), options_.nnodes(), "nodes", plan.start);
      }
      start = plan.start;
      const auto place = std::ranges::find(plan.nodes, options_.node_rank());
      result = run_round({"", 0, start, options_.nproc(), static_cast<int64_t>(plan.nodes.size()),
                          place - plan.nodes.begin(), nodes.launch_id()},
                         &nodes);
      const bool has_succeeded = result.status == 0;
      if (has_succeeded) nodes.succeed(start);
      if (result.signal != 0) return result;
      if (!has_succeeded && !result.of_other_node) {
        nodes.fail({start, result.status, !may_restart(result), result.failure});
      }
      if (!has_succeeded) continue;
      // If another node fails now, all start again.
      const NodePlan verdict = await_verdict(nodes, start);
      if (stopped_by_ != 0) return stopped();
      if (verdict.is_over && !verdict.failure) return result;
      result.failure = verdict.failure ? verdict.failure->message : "the other nodes went on without this node";
      result.of_other_node = true;
    }
  }

  RoundResult stopped() const { return {128 + stopped_by_, stopped_by_, false, "", 0, false}; }

  /// The last result, if no start follows. A failure of this node's own ranks is the one to report.
  RoundResult failed(const NodePlan& plan, RoundResult result) {
    if (result.failure.empty() || result.of_other_node) {
      return {plan.failure->status, 0, false, plan.failure->message, 0, true};
    }
    if (plan.failure->message != c10::str("node ", options_.node_rank(), ": ", result.failure)) {
      output_.note(plan.failure->message);
    }
    return result;
  }

  void leave(NodeRendezvous& nodes, int status) {
    nodes.leave(status);
    // The others still read why it is over.
    for (stopped_by_ = 0; options_.node_rank() == 0 && nodes.others_are_here() && stopped_by_ == 0;) {
      wait(kNodesInterval);
    }
  }

  /// Waits for a start that this node can take part in, for the end, or a signal.
  NodePlan await_start(NodeRendezvous& nodes) {
    const auto begin = std::chrono::steady_clock::now();
    for (bool is_told = nodes.first_start() > 0;; wait(kNodesInterval)) {
      NodePlan plan = nodes.plan();
      const int64_t start = nodes.first_start();
      const bool has_this = std::ranges::find(plan.nodes, options_.node_rank()) != plan.nodes.end();
      if (plan.is_over || (plan.start >= start && has_this) || stopped_by_ != 0) return plan;
      if (plan.start >= start) nodes.be_ready(plan.start + 1);  // the others went on without this node
      if (const std::string missing = nodes.missing();
          !is_told && !missing.empty() && std::chrono::steady_clock::now() - begin > std::chrono::seconds(10)) {
        is_told = true;
        output_.note(
            c10::str("waiting for node ", missing, " at ", options_.master_addr(), ":", options_.master_port()));
      }
    }
  }

  /// Waits until node 0 knows how a start ended on all nodes, or for a signal.
  NodePlan await_verdict(const NodeRendezvous& nodes, int64_t start) {
    for (;; wait(kNodesInterval)) {
      NodePlan plan = nodes.plan();
      if (plan.is_over || plan.failure || plan.start > start || stopped_by_ != 0) return plan;
    }
  }

  void note_restart(const std::string& failure, int64_t left, int64_t all, const char* what, int64_t restart) {
    output_.note(c10::str(failure, "; ", left < all ? c10::str(left, " of ", all, " ", what) : "all ranks",
                          " start again, restart ", restart, " of ", options_.max_restarts()));
  }

  RoundResult run_round(LaunchAttempt attempt, const NodeRendezvous* nodes) {
    store_.reset();  // no rank may find an earlier rank's entries
    if (options_.master_addr().empty()) {
      store_ = distributed::host_local_store();
      attempt.master_addr = distributed::kLoopback;
      attempt.master_port = store_->port;
    } else {
      attempt.master_addr = options_.master_addr();
      attempt.master_port = options_.master_port() + (nodes != nullptr ? 1 + attempt.restart_count : 0);
      if (options_.node_rank() == 0) store_ = distributed::host_store(attempt.master_port);
    }
    output_.forget_ranks();
    LaunchRound round(options_, output_, signals_, guard_, nodes);
    return round.run(attempt);
  }

  bool may_restart(const RoundResult& result) const {
    const auto& final = options_.final_statuses();
    return !result.failure.empty() && result.signal == 0 && !result.output_lost &&
           std::find(final.begin(), final.end(), result.status) == final.end();
  }

  /// Waits for a signal or for the outputs, at most `timeout` milliseconds.
  void wait(int timeout) {
    std::vector<pollfd> files = {{signals_.fd(), POLLIN, 0}};
    output_.add_to(files);
    ::poll(files.data(), files.size(), timeout);
    output_.service();
    for (const int signal : signals_.take()) {
      if (signal != SIGCHLD && signal != SIGWINCH) stopped_by_ = signal;
    }
  }

  /// Waits until the ranks' output is read, or until a signal makes that unnecessary.
  void flush() {
    for (stopped_by_ = 0; !output_.is_flushed() && stopped_by_ == 0;) {
      wait(-1);
    }
  }

  const LaunchOptions& options_;
  const std::string id_ = c10::str(std::random_device()(), "-", std::random_device()());
  GroupGuard guard_;  // first, so that it is forked from a process with few threads, and outlives the rest
  SignalPipe signals_;
  Subreaper subreaper_;
  RankOutput output_;
  std::optional<distributed::HostedStore> store_;
  int stopped_by_ = 0;  // a signal between two starts
};

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  open_standard_files();
  return Launcher(options).run();
}

}  // namespace mezzo::text
