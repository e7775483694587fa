#include "mezzo/text/launch/launcher.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include "distributed/group/hosted_store.h"
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
                    ", expected 0: of several nodes, all start again with as many ranks");
  TORCH_CHECK_VALUE(options.min_nproc() == 0 || options.min_nproc() == options.nproc() || options.max_restarts() > 0,
                    "max_restarts is 0, expected 1 at least: fewer than ", options.nproc(),
                    " ranks are for starting again");
  TORCH_CHECK_VALUE(options.node_rank() >= 0 && options.node_rank() < options.nnodes(), "node_rank is ",
                    options.node_rank(), ", expected 0 to ", options.nnodes() - 1, ": nnodes is ", options.nnodes());
  check_seconds("grace_seconds", options.grace_seconds());
  check_seconds("failure_grace_seconds", options.failure_grace_seconds());
  const bool has_master = !options.master_addr().empty();
  TORCH_CHECK_VALUE(has_master || options.nnodes() == 1, "with ", options.nnodes(),
                    " nodes master_addr and master_port are needed: where node 0 can be reached");
  const int64_t highest = kMostPorts - (options.nnodes() > 1 ? options.max_restarts() : 0);
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
    RoundResult result;
    for (int64_t restarts = 0;; ++restarts) {
      result = run_round(restarts);
      if (restarts == options_.max_restarts() || !may_restart(result)) {
        break;
      }
      if (options_.min_nproc() > 0) {
        nproc_ = std::max(nproc_ - result.lost, options_.min_nproc());
      }
      output_.note(c10::str(result.failure,
                            nproc_ < options_.nproc() ? c10::str("; ", nproc_, " of ", options_.nproc()) : "; all",
                            " ranks start again, restart ", restarts + 1, " of ", options_.max_restarts()));
    }
    if (!result.failure.empty()) {
      output_.note(result.failure);
    }
    flush();
    return result.status == 0 && output_.has_lost_output() ? 1 : result.status;
  }

 private:
  RoundResult run_round(int64_t restarts) {
    store_.reset();  // no rank may find what an earlier one left there
    LaunchAttempt attempt{options_.master_addr(), options_.master_port(), restarts, nproc_, id_};
    if (attempt.master_addr.empty()) {
      store_ = distributed::host_local_store();
      attempt.master_addr = distributed::kLoopback;
      attempt.master_port = store_->port;
    } else {
      attempt.master_port += options_.nnodes() > 1 ? restarts : 0;
      if (options_.node_rank() == 0) {
        store_ = distributed::host_store(attempt.master_port);
      }
    }
    output_.forget_ranks();
    LaunchRound round(options_, output_, signals_, guard_);
    return round.run(attempt);
  }

  bool may_restart(const RoundResult& result) const {
    const auto& final = options_.final_statuses();
    return !result.failure.empty() && result.signal == 0 && !result.output_lost &&
           std::find(final.begin(), final.end(), result.status) == final.end();
  }

  /// Waits until what the ranks said is read, or a signal says that it need not be.
  void flush() {
    while (!output_.is_flushed()) {
      std::vector<pollfd> files = {{signals_.fd(), POLLIN, 0}};
      output_.add_to(files);
      ::poll(files.data(), files.size(), -1);
      output_.service();
      const auto signals = signals_.take();
      if (std::any_of(signals.begin(), signals.end(), [](int s) { return s != SIGCHLD && s != SIGWINCH; })) {
        return;
      }
    }
  }

  const LaunchOptions& options_;
  int64_t nproc_ = options_.nproc();  // of the next start
  const std::string id_ = c10::str(std::random_device()(), "-", std::random_device()());
  GroupGuard guard_;  // first, so that it is forked from a process with few threads, and outlives the rest
  SignalPipe signals_;
  Subreaper subreaper_;
  RankOutput output_;
  std::optional<distributed::HostedStore> store_;
};

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  open_standard_files();
  return Launcher(options).run();
}

}  // namespace mezzo::text
