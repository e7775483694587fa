#include "distributed/heartbeat.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace mezzo::distributed {

/// Owned by the thread too, which may outlive the Heartbeat.
struct Heartbeat::State {
  enum class Request { kNone, kAnnounce, kCensus, kEnd };

  c10::intrusive_ptr<c10d::Store> store;
  int rank, world_size;
  std::string home;
  std::chrono::milliseconds interval;

  std::mutex mutex;
  std::condition_variable changed;
  Request request = Request::kNone;
  std::string kind, message;     // to announce
  std::optional<Census> answer;  // to a request for a census
  bool announced = false;
  bool ended = false;

  void set(const std::string& key, const std::string& value) {
    store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::optional<std::string> find(const std::string& key) {
    if (!store->check({key})) {
      return std::nullopt;
    }
    const auto bytes = store->get(key);
    return std::string(bytes.begin(), bytes.end());
  }

  void run();
  void answer_requests();
  void beat(uint64_t& beats) { set("beat/" + std::to_string(rank), std::to_string(++beats) + " " + home); }
  std::vector<std::string> read_beats();
  Census count(uint64_t& beats);
};

std::vector<std::string> Heartbeat::State::read_beats() {
  std::vector<std::string> keys;
  for (int other = 0; other < world_size; ++other) {
    keys.push_back("beat/" + std::to_string(other));
  }
  std::vector<std::string> values;
  for (const auto& bytes : store->multiGet(keys)) {
    values.emplace_back(bytes.begin(), bytes.end());
  }
  return values;
}

Heartbeat::Census Heartbeat::State::count(uint64_t& beats) {
  Census census;
  const auto before = read_beats();
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(interval);
    beat(beats);
  }
  const auto after = read_beats();
  census.store_answers = true;
  for (int other = 0; other < world_size; ++other) {
    if (const auto failure = find("failed/" + std::to_string(other))) {
      census.failed[other] = *failure;
    } else if (const auto blame = find("gave_up/" + std::to_string(other))) {
      census.gave_up[other] = *blame;
    } else if (other != rank && before[other] == after[other]) {
      census.silent[other] = after[other].substr(after[other].find(' ') + 1);
    }
  }
  return census;
}

void Heartbeat::State::run() {
  try {
    answer_requests();
  } catch (const std::exception&) {
    // The store is gone. Whoever asks for a census waits in vain, and knows by that.
  }
  const std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

void Heartbeat::State::answer_requests() {
  uint64_t beats = 0;
  for (;;) {
    beat(beats);
    std::unique_lock lock(mutex);
    changed.wait_for(lock, interval, [&] { return request != Request::kNone; });
    const Request asked = std::exchange(request, Request::kNone);
    lock.unlock();
    if (asked == Request::kEnd) {
      return;
    }
    if (asked == Request::kAnnounce) {
      const std::string key = kind + std::to_string(rank);
      set(key, message);
      static_cast<void>(store->check({key}));  // the answer says that the store has it
      lock.lock();
      announced = true;
      changed.notify_all();
    }
    if (asked == Request::kCensus) {
      Census census = count(beats);
      lock.lock();
      answer = std::move(census);
      changed.notify_all();
    }
  }
}

Heartbeat::Heartbeat(c10::intrusive_ptr<c10d::Store> store,
                     int rank,
                     int world_size,
                     std::string home,
                     std::chrono::milliseconds interval)
    : state_(std::make_shared<State>()) {
  state_->store = std::move(store);
  state_->rank = rank;
  state_->world_size = world_size;
  state_->home = std::move(home);
  state_->interval = interval;
  std::thread([state = state_] { state->run(); }).detach();
}

Heartbeat::~Heartbeat() {
  std::unique_lock lock(state_->mutex);
  state_->request = State::Request::kEnd;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, state_->interval, [&] { return state_->ended; });
}

void Heartbeat::announce(const char* kind, const std::string& message) {
  std::unique_lock lock(state_->mutex);
  state_->kind = kind;
  state_->message = message;
  state_->request = State::Request::kAnnounce;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, 2 * state_->interval, [&] { return state_->announced || state_->ended; });
}

Heartbeat::Census Heartbeat::take_census() {
  std::unique_lock lock(state_->mutex);
  state_->answer.reset();
  state_->request = State::Request::kCensus;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, 8 * state_->interval, [&] { return state_->answer.has_value() || state_->ended; });
  return state_->answer.value_or(Census{});
}

}  // namespace mezzo::distributed
