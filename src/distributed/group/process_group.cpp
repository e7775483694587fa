#include "mezzo/distributed/group/process_group.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <future>
#include <regex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <typeinfo>
#include <utility>

#include "distributed/group/backends.h"
#include "distributed/group/compare_ranks.h"
#include "distributed/group/heartbeat.h"

namespace mezzo::distributed {
namespace {

using std::chrono::milliseconds;

/// The cause has been found already, so that guards around guards leave it alone.
struct BlamingError : c10::DistError {
  explicit BlamingError(const std::string& message) : c10::DistError(message) {}
};

milliseconds beat_interval(milliseconds timeout) {
  return std::clamp(timeout / 10, milliseconds(50), milliseconds(1000));
}

/// How long a rank waits for others at the start before it says so.
milliseconds patience(milliseconds timeout) { return std::clamp(timeout / 4, milliseconds(1), milliseconds(10'000)); }

std::string first_line(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::string seconds(milliseconds duration) {
  return fmt::format("{:g} s", static_cast<double>(duration.count()) / 1000);
}

std::string this_process() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return fmt::format("process {} on {}", getpid(), host);
}

/// Whether a message begins with the place in Gloo's sources that threw it, "[…/gloo/transport/tcp/pair.cc:553] ". The
/// name of a class precedes it if the error came through Python.
bool has_stamp_of_gloo(const std::string& message) {
  static const std::regex stamp(R"((\w+: )?\[\S*/gloo/\S+\.(cc|h):\d+\] )");
  return std::regex_search(message.substr(0, 1000), stamp, std::regex_constants::match_continuous);
}

/// Whether an error came from a collective and not from this rank itself. Its type or the place that threw it decides,
/// since the words of a message may be any, such as a file's name. Gloo's classes are not LibTorch's to show.
bool is_communication_error(const std::exception& error) {
  return dynamic_cast<const c10::DistError*>(&error) != nullptr ||
         c10::demangle(typeid(error).name()).starts_with("gloo::") || has_stamp_of_gloo(first_line(error));
}

/// Slurm's nodes have their names before a job starts, so waiting for a name is in vain. Elsewhere, as on Kubernetes, a
/// name may come later: LibTorch waits for it.
void check_host_of_slurm(const RankEnvironment& environment, milliseconds at_most) {
  if (environment.launcher != "Slurm") return;
  addrinfo* found = nullptr;
  int error = 0;
  const auto end = std::chrono::steady_clock::now() + at_most;
  while ((error = getaddrinfo(environment.master_addr.c_str(), nullptr, nullptr, &found)) == EAI_AGAIN &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(500));
  }
  if (error != 0) {
    throw BlamingError(
        fmt::format("rank {} cannot resolve the host '{}', where rank 0 is: {}. Set MASTER_ADDR, for all ranks, "
                    "to a name or an address of that host that all hosts can resolve",
                    environment.rank, environment.master_addr, gai_strerror(error)));
  }
  freeaddrinfo(found);
}

/// The text for an exception that is not a std::exception.
constexpr const char* kNoStdException = "an exception of an unknown type";

/// The key that says that `rank` needs the store no more.
std::string left_key(int rank) { return fmt::format("left/{}", rank); }

/// The key that counts the groups in which `rank` has met the others.
std::string groups_of(int rank) { return fmt::format("groups/{}", rank); }

/// Of a line of check_same(): NAME, zero, VALUE.
std::string first_word(const std::string& line) { return line.substr(0, line.find('\0')); }

struct Difference {
  std::string name, here, there;
};

/// As the destructor of NCCL's backend does, which first warns that a function of Python was not called.
void end_nccl(c10d::ProcessGroup& group) {
  for (const c10::Device& device : group.getDeviceTypes()) {
    const auto backend = group.getBackend(device.type());
    if (backend->getBackendName() == "nccl") {
      try {
        backend->abort();
      } catch (const std::exception&) {  // took longer than the timeout; there is nobody to tell
      }
    }
  }
}

/// Lines stand in the order of names, so the lesser of two names is the one
/// that the other rank lacks.
Difference by_name(const RankDifference& lines) {
  const bool from_here = !lines.there || (lines.here && first_word(*lines.here) < first_word(*lines.there));
  const std::string name = first_word(from_here ? *lines.here : *lines.there);
  const auto value = [&](const std::optional<std::string>& line) {
    return line && first_word(*line) == name ? line->substr(name.size() + 1) : "nothing";
  };
  return {name, value(lines.here), value(lines.there)};
}

}  // namespace

ProcessGroup::ProcessGroup(const RankEnvironment& environment, const ProcessGroupOptions& options)
    : environment_(environment), options_(options) {
  TORCH_CHECK_VALUE(options.timeout() > milliseconds(0), "the timeout of a process group must be above 0");
  check_backend(options.device());
  connect();
  try {
    meet();
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store_, rank(), size());
    guard([&] {
      const auto store = c10::make_intrusive<c10d::PrefixStore>("group", store_);
      add_backends(*group_, store, environment_, options_.device(), options_.timeout());
      barrier();
      start_store_->add(groups_of(rank()), 1);
    });
  } catch (const std::exception&) {
    group_.reset();
    keep_store_for_others();
    throw;
  }
}

/// So that they can see what happened.
void ProcessGroup::keep_store_for_others() const {
  if (hosts_store()) {
    std::this_thread::sleep_for(8 * beat_interval(options_.timeout()));
  }
}

/// Opens two connections to the store: for the group, and for the heartbeat.
void ProcessGroup::connect() {
  check_host_of_slurm(environment_, patience(options_.timeout()));
  c10d::TCPStoreOptions tcp;
  tcp.port = environment_.master_port;
  tcp.isServer = rank() == 0 && !environment_.launcher_hosts_store;
  tcp.waitWorkers = false;
  tcp.timeout = options_.timeout();
  tcp.multiTenant = true;  // for several groups of one process
  const std::string place = fmt::format("{}:{}", environment_.master_addr, environment_.master_port);
  try {
    // On another thread, so that this thread can warn of the wait, through its warning handler.
    auto connecting = std::async(std::launch::async,
                                 [&] { return c10::make_intrusive<c10d::TCPStore>(environment_.master_addr, tcp); });
    if (connecting.wait_for(patience(options_.timeout())) == std::future_status::timeout) {
      TORCH_WARN("rank ", rank(), " is waiting for ", environment_.launcher_hosts_store ? "the launcher" : "rank 0",
                 " at ", place);
    }
    const auto tcp_store = connecting.get();
    // A store may serve several runs, starts of a run and groups of a start, and keeps their entries.
    const std::string start = fmt::format("mezzo/{}/{}", environment_.run_id, environment_.restart_count);
    start_store_ = c10::make_intrusive<c10d::PrefixStore>(start, tcp_store);
    const std::string prefix = fmt::format("{}/{}", start, start_store_->add(groups_of(rank()), 0));
    store_ = c10::make_intrusive<c10d::PrefixStore>(prefix, tcp_store);
    heartbeat_ = std::make_unique<Heartbeat>(c10::make_intrusive<c10d::PrefixStore>(prefix, tcp_store->clone()), rank(),
                                             size(), this_process(), beat_interval(options_.timeout()));
  } catch (const std::exception& error) {
    std::string why = first_line(error);
    if (why.ends_with('.')) why.pop_back();
    const bool cannot_listen = why.find("listen") != std::string::npos;
    throw BlamingError(
        tcp.isServer ? fmt::format("rank 0 cannot open the ranks' store at {}: {}; set {} of this host", place, why,
                                   cannot_listen ? "MASTER_PORT to a free port" : "MASTER_ADDR to an address")
                     : fmt::format("rank {} could not reach the ranks' store at {}, within {}: "
                                   "is rank 0 running, and is MASTER_ADDR its host? ({})",
                                   rank(), place, seconds(options_.timeout()), why));
  }
}

/// Waits at most that long for the heartbeats of all ranks. Returns the ranks that did not come.
std::vector<int> ProcessGroup::wait_for_ranks(milliseconds at_most) {
  std::vector<std::string> keys;
  for (int other = 0; other < size(); ++other) {
    keys.push_back(fmt::format("beat/{}", other));
  }
  try {
    store_->wait(keys, at_most);
    return {};
  } catch (const std::exception&) {  // some are missing, or the store is gone
  }
  std::vector<int> missing;
  try {
    for (int other = 0; other < size(); ++other) {
      if (!store_->check({keys[other]})) {
        missing.push_back(other);
      }
    }
  } catch (const std::exception&) {
    throw BlamingError(fmt::format("the ranks' store at {}:{} ended while rank {} waited for the other ranks",
                                   environment_.master_addr, environment_.master_port, rank()));
  }
  return missing;
}

void ProcessGroup::meet() {
  const auto first_wait = patience(options_.timeout());
  auto missing = wait_for_ranks(first_wait);
  const auto named = [&] {
    return fmt::format("rank{} {} of {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), size());
  };
  if (!missing.empty()) {
    int first_here = 0;
    for (const int other : missing) {
      first_here += other == first_here ? 1 : 0;
    }
    if (rank() == first_here) {  // says it for all
      TORCH_WARN("waiting for ", named(), " at ", environment_.master_addr, ":", environment_.master_port);
    }
    missing = wait_for_ranks(std::max(options_.timeout() - first_wait, milliseconds(1)));  // 0 would be for ever
  }
  if (!missing.empty()) {
    throw BlamingError(
        fmt::format("{} did not come within {}: still starting, failed, or on a host that cannot reach {}:{}", named(),
                    seconds(options_.timeout()), environment_.master_addr, environment_.master_port));
  }
}

ProcessGroup::~ProcessGroup() {
  if (aborting_.empty()) {
    end_nccl(*group_);
  }
  aborting_.clear();
  lost_rank_ = {};
  group_.reset();  // closes its connections, which the others notice
  if (others_may_ask_) {
    keep_store_for_others();
  }
}

void ProcessGroup::shutdown() {
  barrier();
  if (parent_ != nullptr) {
    return;
  }
  if (hosts_store()) {
    wait_until_others_left();
  }
  lost_rank_ = {};
  heartbeat_.reset();
  if (!hosts_store() && !environment_.launcher_hosts_store) {  // a launcher may take it away from now on
    store_->add(left_key(rank()), 1);
  }
  others_may_ask_ = false;
}

/// Does not wait for ranks that never will: they have failed, or have no heartbeat any more.
void ProcessGroup::wait_until_others_left() {
  using Clock = std::chrono::steady_clock;
  const auto still_to_come = [&](const Heartbeat::Census& census) {
    for (int other = 1; other < size(); ++other) {
      const bool is_gone =
          census.silent.contains(other) || census.failed.contains(other) || census.gave_up.contains(other);
      if (!is_gone && !store_->check({left_key(other)})) {
        return true;
      }
    }
    return false;
  };
  const auto begin = Clock::now();
  while (still_to_come({}) && Clock::now() < begin + beat_interval(options_.timeout())) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  while (still_to_come({}) && Clock::now() < begin + options_.timeout()) {
    const auto census = heartbeat_->take_census();
    if (!census.store_answers || !still_to_come(census)) {
      return;
    }
  }
}

ProcessGroup::ProcessGroup(ProcessGroup& parent, const std::vector<int>& ranks, int number)
    : environment_(parent.environment_), options_(parent.options_), parent_(&parent) {
  environment_.rank = static_cast<int>(std::ranges::find(ranks, parent.rank()) - ranks.begin());
  environment_.world_size = static_cast<int>(ranks.size());
  const bool one_host = parent.environment_.local_world_size == parent.size();
  environment_.local_rank = one_host ? environment_.rank : 0;
  environment_.local_world_size = one_host ? environment_.world_size : 1;
  std::ranges::transform(ranks, std::back_inserter(ranks_), [&](int other) { return parent.name_of(other); });
  store_ = c10::make_intrusive<c10d::PrefixStore>(fmt::format("subgroup/{}", number), parent.store_);
  group_ = c10::make_intrusive<c10d::ProcessGroup>(store_, rank(), size());
  guard([&] {
    add_backends(*group_, store_, environment_, options_.device(), options_.timeout());
    barrier();
  });
}

std::unique_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) {
  check_same({{"the argument of new_group", fmt::to_string(fmt::join(ranks, ", "))}});
  TORCH_CHECK_VALUE(!ranks.empty(), "new_group: no rank is given");
  for (const int other : ranks) {
    TORCH_CHECK_VALUE(other >= 0 && other < size(), "new_group: there is no rank ", other, " in a group of ", size());
    TORCH_CHECK_VALUE(std::ranges::count(ranks, other) == 1, "new_group: rank ", other, " is given twice");
  }
  const int number = subgroups_++;
  const bool is_member = std::ranges::find(ranks, rank()) != ranks.end();
  return is_member ? std::unique_ptr<ProcessGroup>(new ProcessGroup(*this, ranks, number)) : nullptr;
}

void ProcessGroup::check_same(const std::map<std::string, std::string>& values) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : values) {
    lines.push_back(name + '\0' + value);
  }
  const auto difference = compare_ranks(*this, lines);
  all_know_ = difference.has_value();  // an earlier error that was caught is of the past
  if (difference) {
    const auto [name, here, there] = by_name(*difference);
    throw BlamingError(fmt::format(
        "{} differs between ranks: '{}' on rank {}, '{}' on rank {}; start all ranks with the same settings", name,
        here, name_of(0), there, name_of(difference->rank)));
  }
}

void ProcessGroup::all_or_none(const std::function<void()>& work) {
  std::exception_ptr mine;
  std::string outcome;  // empty for success; an error's message may be empty, too
  try {
    work();
  } catch (const std::exception& error) {
    mine = std::current_exception();
    outcome = "!" + first_line(error);
  } catch (...) {
    mine = std::current_exception();
    outcome = std::string("!") + kNoStdException;
  }
  const auto outcomes = all_gather(outcome);
  const auto first = std::find_if(outcomes.begin(), outcomes.end(), [](const auto& text) { return !text.empty(); });
  all_know_ = first != outcomes.end();
  if (mine) {
    std::rethrow_exception(mine);
  }
  if (first != outcomes.end()) {
    throw BlamingError(
        fmt::format("rank {} failed: {}", name_of(static_cast<int>(first - outcomes.begin())), first->substr(1)));
  }
}

void ProcessGroup::guard(const std::function<void()>& work) {
  if (parent_ != nullptr) {
    return parent_->guard(work);  // which knows the heartbeats
  }
  try {
    work();
  } catch (const BlamingError&) {
    throw;
  } catch (const std::exception& error) {
    if (is_communication_error(error)) {
      throw_blaming(first_line(error));
    }
    announce_failure(first_line(error));
    throw;
  } catch (...) {
    announce_failure(kNoStdException);
    throw;
  }
}

void ProcessGroup::wait(const std::function<bool()>& is_done) {
  using Clock = std::chrono::steady_clock;
  const auto wait_until = [&](Clock::time_point end) {
    while (!is_done() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return is_done();
  };
  guard([&] {
    const auto end = Clock::now() + options_.timeout();
    bool done = wait_until(Clock::now() + patience(options_.timeout()));
    if (!done) {
      knows_of_lost_rank();  // drops the answer that an earlier wait asked for
    }
    while (!done && Clock::now() < end && !knows_of_lost_rank()) {
      done = wait_until(Clock::now() + milliseconds(1));
    }
    if (!done) {
      abort();
      wait_until(Clock::now() +
                 8 * beat_interval(options_.timeout()));  // collectives of the device end without a result
      throw c10::DistError("the device waits for other ranks");
    }
  });
}

/// Whether some rank has failed or has no heartbeat, as far as is known. Never waits.
bool ProcessGroup::knows_of_lost_rank() {
  if (parent_ != nullptr) {
    return parent_->knows_of_lost_rank();
  }
  if (!lost_rank_.valid()) {
    lost_rank_ = std::async(std::launch::async, [this] {
      const auto census = heartbeat_->take_census();
      return !(census.store_answers && census.failed.empty() && census.silent.empty() && census.gave_up.empty());
    });
  }
  return lost_rank_.wait_for(milliseconds(0)) == std::future_status::ready && lost_rank_.get();
}

/// Ends what this rank's device waits for. Another thread does it, since NCCL's waits until graphs are destroyed.
void ProcessGroup::abort() {
  for (const c10::Device& device : group_->getDeviceTypes()) {
    if (!device.is_cpu()) {
      aborting_.push_back(
          std::async(std::launch::async, [backend = group_->getBackend(device.type())] { backend->abort(); }));
    }
  }
  if (parent_ != nullptr) {
    parent_->abort();
  }
}

/// Lets the other ranks know why this one fails.
void ProcessGroup::announce_failure(const std::string& reason) {
  if (!all_know_ && !others_may_ask_) {
    others_may_ask_ = true;
    heartbeat_->announce_failure(reason);
  }
}

/// `error`: the collective's message, which names addresses at most.
void ProcessGroup::throw_blaming(const std::string& error) {
  others_may_ask_ = true;
  const auto census = heartbeat_->take_census();
  std::string message;
  if (!census.store_answers) {
    const bool by_launcher = environment_.launcher_hosts_store;
    message = fmt::format(
        "the ranks' store, kept by {} at {}:{}, does not answer: {}, or its host "
        "cannot be reached",
        by_launcher ? "the launcher" : "rank 0", environment_.master_addr, environment_.master_port,
        by_launcher ? "the launcher has ended" : "rank 0 was killed or stopped");
  } else if (!census.failed.empty()) {
    const auto& [other, reason] = *census.failed.begin();
    message = fmt::format("rank {} failed: {}", other, reason);
  } else if (!census.silent.empty()) {
    std::vector<std::string> silent;
    for (const auto& [other, home] : census.silent) {
      silent.push_back(fmt::format("rank {} ({})", other, home));
    }
    message = fmt::format("lost {}: killed, stopped, or out of reach", fmt::join(silent, ", "));
  } else if (!census.gave_up.empty()) {
    message = census.gave_up.begin()->second;
  } else {
    message = fmt::format(
        "a collective failed though all ranks are alive. A rank may have been busy for longer than the "
        "timeout of {}, or ranks passed different tensors: set check_collectives to compare them ({})",
        seconds(options_.timeout()), error);
  }
  if (census.store_answers) {
    heartbeat_->announce_giving_up(message);
  }
  throw BlamingError(message);
}

}  // namespace mezzo::distributed
