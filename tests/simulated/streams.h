#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

#include "simulated/ordering.h"

namespace mezzo::simulated {

constexpr c10::DeviceIndex kDevices = 2;
constexpr auto kType = c10::DeviceType::PrivateUse1;

/// When streams do their work.
enum class Pace {
  kLate,  ///< when somebody waits for it: data that are read earlier have certainly not arrived
  kEager  ///< at once, beside the host
};
/// Of all streams, from now on. Initially kLate.
void set_pace(Pace pace);

struct Recording;

using Ticket = uint64_t;  ///< 1 is a stream's first piece of work

/// A stream: work in the order it came, done by a separate thread.
class Queue {
 public:
  static Queue& of(c10::Stream stream);
  /// One more stream of a device, beside the default one.
  static c10::Stream create(c10::Device device);
  /// All there are.
  static std::vector<Queue*> all();

  c10::Stream stream() const { return stream_; }
  /// In all clocks.
  size_t number() const { return number_; }

  /// Puts `work` at the end, at a new time, which `note` is called with, order_mutex() held.
  Ticket push(std::function<void()> work, const std::function<void(const Clock& clock)>& note = {});
  Ticket last() const;
  /// The work that is known to be done when all work so far is done. Call with order_mutex() held.
  Clock& clock() { return clock_; }

  /// Makes the stream work up to there, without waiting.
  void demand(Ticket ticket);
  bool is_done(Ticket ticket);
  /// Until the work is done; not a host sync.
  void wait(Ticket ticket);

 private:
  Queue(c10::Stream stream, size_t number);
  static c10::Stream add(c10::Device device);
  void loop();

  const c10::Stream stream_;
  const size_t number_;
  Clock clock_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  Ticket pushed_ = 0, demanded_ = 0, done_ = 0;
};

/// The host's clock: the work that it knows to be done. Call with order_mutex() held.
Clock& host_clock();

/// The host waits for the work of `queue` up to `ticket`, at which `clock` was its time,
/// and sees what went wrong.
void host_sync(Queue& queue, Ticket ticket, const Clock& clock, const std::string& what);
/// The same, for all there is to do.
void host_sync(Queue& queue, const std::string& what);

/// A point in a stream's work.
struct Event {
  Queue* queue = nullptr;  ///< null until it is recorded
  Ticket ticket = 0;
  Clock clock;
  Recording* recording = nullptr;  ///< that it is part of
  size_t number = 0;               ///< there

  void record(Queue& on);
  /// Makes `other` wait for the work before this event.
  void block(Queue& other) const;
};

c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex device);
/// Of this thread.
c10::Stream current_stream(c10::DeviceIndex device);
void set_current_stream(c10::Stream stream);
c10::Stream default_stream(c10::DeviceIndex device);

}  // namespace mezzo::simulated
