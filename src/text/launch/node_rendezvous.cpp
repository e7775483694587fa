#include "text/launch/node_rendezvous.h"

#include <c10/util/intrusive_ptr.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

namespace mezzo::text {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr auto kInterval = 250ms;
constexpr const char* kPlan = "plan";

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

Json to_json(const std::optional<NodeFailure>& failure) {
  return failure ? Json{failure->start, failure->status, failure->is_final, failure->message} : Json();
}

std::optional<NodeFailure> failure_from(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return NodeFailure{json.at(0), json.at(1), json.at(2), json.at(3)};
}

Json to_json(const NodeReport& report) {
  return {report.beat, report.ready, report.succeeded, to_json(report.failure),
          report.left ? Json(*report.left) : Json()};
}

NodeReport report_from(const Json& json) {
  NodeReport report{json.at(0), json.at(1), json.at(2), failure_from(json.at(3)), std::nullopt};
  if (!json.at(4).is_null()) report.left = json.at(4).get<int>();
  return report;
}

Json to_json(const NodePlan& plan) { return {plan.start, plan.nodes, to_json(plan.failure), plan.is_over}; }

NodePlan plan_from(const Json& json) { return {json.at(0), json.at(1), failure_from(json.at(2)), json.at(3)}; }

void set(c10d::Store& store, const std::string& key, const Json& value) {
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::string key_of(int64_t node) { return fmt::format("node/{}", node); }

}  // namespace

/// Owned by the thread too, which may outlive the NodeRendezvous.
struct NodeRendezvous::State {
  explicit State(const LaunchOptions& given) : options(given), agreement(given, Clock::now()) {}

  const LaunchOptions options;
  c10::intrusive_ptr<c10d::Store> store;
  NodeAgreement agreement;  // node 0's
  std::set<int64_t> known;  // nodes that have come; of the thread alone
  Json written;             // the plan, as the store has it; of the thread alone

  mutable std::mutex mutex;
  std::condition_variable changed;
  NodeReport own;
  int64_t told = 0;  // beats of `own` that the store has
  NodePlan plan;
  std::string launch_id, missing;
  bool others_are_here = false, is_closing = false, has_ended = false;
  Clock::time_point answered_at = Clock::now() + milliseconds(options.join_seconds());

  bool is_first() const { return options.node_rank() == 0; }
  std::string place() const { return fmt::format("{}:{}", options.master_addr(), options.master_port()); }

  /// Has the thread say at once what `own` holds. Returns the beat that tells it.
  int64_t speak() {
    changed.notify_all();
    return ++own.beat;  // a report that is under way has an earlier beat
  }
  void run();
  void connect();
  void exchange();
  NodePlan lead(bool& others);
};

void NodeRendezvous::State::run() {
  try {
    connect();
    for (;;) {
      exchange();
      std::unique_lock lock(mutex);
      changed.wait_for(lock, kInterval, [&] { return is_closing || own.beat > told; });
      if (is_closing) break;
    }
  } catch (const std::exception&) {
    // The store is gone.
  }
  const std::lock_guard lock(mutex);
  has_ended = true;
  changed.notify_all();
}

void NodeRendezvous::State::connect() {
  if (store == nullptr) {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<uint16_t>(options.master_port());
    tcp.waitWorkers = false;
    tcp.timeout = milliseconds(options.join_seconds());
    store = c10::make_intrusive<c10d::TCPStore>(options.master_addr(), tcp);
  }
  store = c10::make_intrusive<c10d::PrefixStore>("launchers", store);
  if (!is_first() && store->check({kPlan})) {
    // A start that is under way counts on an earlier launcher of this node, or on none.
    const int64_t next = plan_from(Json::parse(store->get(kPlan)).at(0)).start + 1;
    const std::lock_guard lock(mutex);
    own.ready = std::max(own.ready, next);
  }
}

void NodeRendezvous::State::exchange() {
  NodeReport report;
  {
    const std::lock_guard lock(mutex);
    own.beat = std::max(own.beat, told + 1);
    report = own;
  }
  set(*store, key_of(options.node_rank()), to_json(report));
  bool others = false;
  NodePlan decided;
  std::string id;
  if (is_first()) {
    decided = lead(others);
  } else {
    const auto bytes = store->get(kPlan);
    const Json json = Json::parse(bytes);
    decided = plan_from(json.at(0));
    id = json.at(1);
  }
  const std::lock_guard lock(mutex);
  told = report.beat;
  plan = std::move(decided);
  others_are_here = others;
  if (is_first()) {
    std::vector<int64_t> absent;
    for (int64_t node = 0; node < options.nnodes(); ++node) {
      if (!known.contains(node)) absent.push_back(node);
    }
    missing = fmt::format("{}", fmt::join(absent, ", "));
  } else {
    launch_id = id;
    missing.clear();
  }
  answered_at = Clock::now();
  changed.notify_all();
}

NodePlan NodeRendezvous::State::lead(bool& others) {
  std::vector<std::string> keys;
  for (int64_t node = 0; node < options.nnodes(); ++node) {
    if (known.contains(node) || store->check({key_of(node)})) known.insert(node);
  }
  for (const int64_t node : known) keys.push_back(key_of(node));
  std::map<int64_t, NodeReport> reports;
  const auto values = store->multiGet(keys);
  auto value = values.begin();
  for (const int64_t node : known) reports[node] = report_from(Json::parse(*value++));
  const NodePlan& decided = agreement.decide(reports, Clock::now());
  if (Json json = {to_json(decided), launch_id}; json != written) {
    set(*store, kPlan, json);
    written = std::move(json);
  }
  others = agreement.others_are_here(reports);
  return decided;
}

NodeRendezvous::NodeRendezvous(const LaunchOptions& options,
                               c10::intrusive_ptr<c10d::Store> store,
                               std::string launch_id)
    : state_(std::make_shared<State>(options)) {
  state_->store = std::move(store);
  state_->launch_id = std::move(launch_id);
  state_->missing = state_->is_first() ? "" : "0";
  std::thread([state = state_] { state->run(); }).detach();
}

NodeRendezvous::~NodeRendezvous() {
  std::unique_lock lock(state_->mutex);
  state_->is_closing = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, 2 * kInterval, [&] { return state_->has_ended; });
}

NodePlan NodeRendezvous::plan() const {
  const std::lock_guard lock(state_->mutex);
  const bool answers =
      !state_->has_ended && Clock::now() - state_->answered_at < milliseconds(state_->options.node_timeout_seconds());
  if (answers || state_->plan.is_over) return state_->plan;
  NodePlan plan = state_->plan;
  plan.is_over = true;
  plan.failure = NodeFailure{plan.start, 1, true, fmt::format("node 0 does not answer at {}", state_->place())};
  return plan;
}

std::string NodeRendezvous::launch_id() const {
  const std::lock_guard lock(state_->mutex);
  return state_->launch_id;
}

std::string NodeRendezvous::missing() const {
  const std::lock_guard lock(state_->mutex);
  return state_->missing;
}

bool NodeRendezvous::others_are_here() const {
  const std::lock_guard lock(state_->mutex);
  return state_->others_are_here && !state_->has_ended;
}

int64_t NodeRendezvous::first_start() const {
  const std::lock_guard lock(state_->mutex);
  return state_->own.ready;
}

void NodeRendezvous::be_ready(int64_t start) {
  const std::lock_guard lock(state_->mutex);
  state_->own.ready = std::max(state_->own.ready, start);
  state_->speak();
}

void NodeRendezvous::succeed(int64_t start) {
  const std::lock_guard lock(state_->mutex);
  state_->own.succeeded = start;
  state_->speak();
}

void NodeRendezvous::fail(const NodeFailure& failure) {
  const std::lock_guard lock(state_->mutex);
  state_->own.failure = failure;
  state_->speak();
}

void NodeRendezvous::leave(int status) {
  std::unique_lock lock(state_->mutex);
  state_->own.left = status;
  const int64_t beat = state_->speak();
  state_->changed.wait_for(lock, 8 * kInterval, [&] { return state_->told >= beat || state_->has_ended; });
}

}  // namespace mezzo::text
