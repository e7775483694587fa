#include "distributed/group/heartbeat.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace mezzo::distributed {

/// Owned by the thread too, which may outlive the Heartbeat.
struct Heartbeat::State {
  c10::intrusive_ptr<c10d::Store> store;
  int rank, world_size;
  std::string home;
  std::chrono::milliseconds interval;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;  // the first may be under way
  bool is_closing = false;
  bool has_ended = false;

  uint64_t beats = 0;  // of the thread alone

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

  /// Has the thread do `work` when its turn comes. Returns the result; nullopt if that is not
  /// there in time, or the store is gone. The thread does it anyway, later.
  template <class Work>
  auto ask(std::chrono::milliseconds patience, const Work& work) -> std::optional<decltype(work())>;
  void run();
  void beat_and_work();
  void beat() { set("beat/" + std::to_string(rank), std::to_string(++beats) + " " + home); }
  std::vector<std::string> read_beats();
  Census count();
};

template <class Work>
auto Heartbeat::State::ask(std::chrono::milliseconds patience, const Work& work) -> std::optional<decltype(work())> {
  auto task = std::make_shared<std::packaged_task<decltype(work())()>>(work);
  auto result = task->get_future();
  {
    const std::lock_guard lock(mutex);
    if (has_ended) {
      return std::nullopt;
    }
    tasks.emplace_back([task = std::move(task)] { (*task)(); });  // the thread's alone, which may drop it
    changed.notify_all();
  }
  try {
    return result.wait_for(patience) == std::future_status::ready ? std::optional(result.get()) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

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

Heartbeat::Census Heartbeat::State::count() {
  Census census;
  const auto before = read_beats();
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(interval);
    beat();
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
    beat_and_work();
  } catch (const std::exception&) {
    // The store is gone.
  }
  const std::lock_guard lock(mutex);
  has_ended = true;
  tasks.clear();  // the caller waits no longer
  changed.notify_all();
}

void Heartbeat::State::beat_and_work() {
  for (;;) {
    beat();
    std::unique_lock lock(mutex);
    changed.wait_for(lock, interval, [&] { return is_closing || !tasks.empty(); });
    while (!tasks.empty()) {
      const auto& task = tasks.front();
      lock.unlock();
      task();
      lock.lock();
      tasks.pop_front();
    }
    if (is_closing) {
      return;
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
  state_->is_closing = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, (state_->tasks.empty() ? 1 : 8) * state_->interval, [&] { return state_->has_ended; });
}

void Heartbeat::announce(const char* kind, const std::string& message) {
  const std::string key = kind + std::to_string(state_->rank);
  state_->ask(2 * state_->interval, [state = state_.get(), key, message] {
    state->set(key, message);
    return state->store->check({key});  // the answer says that the store has it
  });
}

Heartbeat::Census Heartbeat::take_census() {
  return state_->ask(8 * state_->interval, [state = state_.get()] { return state->count(); }).value_or(Census{});
}

}  // namespace mezzo::distributed
