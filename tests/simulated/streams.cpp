#include "simulated/streams.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "simulated/graph.h"
#include "simulated/report.h"

namespace mezzo::simulated {
namespace {

std::atomic<Pace> current_pace = Pace::kLate;

/// Streams live to the end of the process, and so do their threads.
struct Queues {
  std::mutex mutex;
  std::vector<Queue*> all;
  std::array<std::vector<Queue*>, kDevices> of_device;  // the first is the default stream
};

Queues& queues() {
  static auto* const made = new Queues;
  return *made;
}

void check_device(c10::Device device) {
  TORCH_CHECK(device.type() == kType && device.index() >= 0 && device.index() < kDevices,
              "simulated device: there is no ", device);
}

thread_local c10::DeviceIndex this_device = 0;
thread_local std::array<std::optional<c10::Stream>, kDevices> these_streams;

}  // namespace

void set_pace(Pace pace) {
  current_pace = pace;
  for (Queue* queue : Queue::all()) {
    if (pace == Pace::kEager) {
      queue->demand(queue->last());
    }
  }
}

Queue::Queue(c10::Stream stream, size_t number) : stream_(stream), number_(number) {
  std::thread([this] { loop(); }).detach();
}

c10::Stream Queue::create(c10::Device device) {
  of(default_stream(device.index()));
  return add(device);
}

c10::Stream Queue::add(c10::Device device) {
  const std::lock_guard lock(queues().mutex);
  auto& siblings = queues().of_device[static_cast<size_t>(device.index())];
  const c10::Stream stream(c10::Stream::UNSAFE, device, static_cast<c10::StreamId>(siblings.size()));
  siblings.push_back(new Queue(stream, queues().all.size()));
  queues().all.push_back(siblings.back());
  return stream;
}

Queue& Queue::of(c10::Stream stream) {
  check_device(stream.device());
  const auto id = static_cast<size_t>(stream.id());
  if (id == 0) {
    static std::array<std::once_flag, kDevices> once;
    std::call_once(once[static_cast<size_t>(stream.device_index())], [&] { add(stream.device()); });
  }
  const std::lock_guard lock(queues().mutex);
  const auto& siblings = queues().of_device[static_cast<size_t>(stream.device_index())];
  TORCH_CHECK(id < siblings.size(), "simulated device: there is no ", stream);
  return *siblings[id];
}

std::vector<Queue*> Queue::all() {
  const std::lock_guard lock(queues().mutex);
  return queues().all;
}

Ticket Queue::push(std::function<void()> work, const std::function<void(const Clock& clock)>& note) {
  const std::lock_guard order(order_mutex());
  join(clock_, host_clock());
  clock_.resize(std::max(clock_.size(), number_ + 1));
  ++clock_[number_];
  if (note) {
    note(clock_);
  }
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  ++pushed_;
  if (current_pace == Pace::kEager) {
    demanded_ = pushed_;
    changed_.notify_all();
  }
  return pushed_;
}

Ticket Queue::last() const {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

void Queue::demand(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  demanded_ = std::max(demanded_, ticket);
  changed_.notify_all();
}

bool Queue::is_done(Ticket ticket) {
  forbid_in_recordings("a query of a stream", this);
  demand(ticket);  // so that who asks again and again gets there
  const std::lock_guard lock(mutex_);
  return done_ >= ticket;
}

void Queue::wait(Ticket ticket) {
  demand(ticket);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
}

void Queue::loop() {
  at::set_num_threads(1);  // no pool of threads beside each stream
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return demanded_ > done_; });
    auto work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    try {
      work();
    } catch (...) {
      note_error(std::current_exception());
    }
    work = nullptr;  // it holds memory
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

Clock& host_clock() {
  static auto* const clock = new Clock;
  return *clock;
}

void host_sync(Queue& queue, Ticket ticket, const Clock& clock, const std::string& what) {
  note_host_sync(what, &queue);
  queue.wait(ticket);
  {
    const std::lock_guard order(order_mutex());
    join(host_clock(), clock);
  }
  throw_noted();
}

void host_sync(Queue& queue, const std::string& what) {
  Event now;
  now.record(queue);
  host_sync(queue, now.ticket, now.clock, what);
}

void Event::record(Queue& on) {
  recording = recording_of(on);
  if (recording != nullptr) {
    number = recording->record_event(on);
  }
  const std::lock_guard order(order_mutex());
  queue = &on;
  ticket = on.last();
  clock = on.clock();
}

void Event::block(Queue& other) const {
  if (queue == nullptr || queue == &other) {
    return;
  }
  if (recording != nullptr && is_under_way(recording) && other.stream().id() != 0) {
    return recording->wait(other, number);
  }
  if (recording != nullptr || recording_of(other) != nullptr) {
    forbid_in_recordings("an event between a stream that is recorded and one that is not", queue);
    forbid_in_recordings("an event between a stream that is recorded and one that is not", &other);
  }
  {
    const std::lock_guard order(order_mutex());
    join(other.clock(), clock);
  }
  other.push([queue = queue, ticket = ticket] { queue->wait(ticket); });
}

c10::DeviceIndex current_device() { return this_device; }

void set_current_device(c10::DeviceIndex device) {
  check_device({kType, device});
  this_device = device;
}

c10::Stream default_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(kType, device));
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return these_streams.at(static_cast<size_t>(device)).value_or(default_stream(device));
}

void set_current_stream(c10::Stream stream) { these_streams.at(static_cast<size_t>(stream.device_index())) = stream; }

}  // namespace mezzo::simulated
