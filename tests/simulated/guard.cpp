#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "simulated/generator.h"
#include "simulated/memory.h"
#include "simulated/streams.h"

/// LibTorch's interface for devices, streams and events, by `streams.h`, and its other interfaces
/// for a device.
namespace mezzo::simulated {
namespace {

constexpr size_t kPooledStreams = 4;

const Event& as_event(void* event) { return *static_cast<const Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      set_current_device(device.index());
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(index_of(device)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    static auto* const pools = new std::array<std::vector<c10::Stream>, kDevices>;
    static std::mutex mutex;
    static size_t next = 0;
    const std::lock_guard lock(mutex);
    auto& pool = pools->at(static_cast<size_t>(index_of(device)));
    while (pool.size() < kPooledStreams) {
      pool.push_back(Queue::create({kType, index_of(device)}));
    }
    return pool[next++ % kPooledStreams];
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return Queue::create({kType, index_of(device)});
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto previous = getStream(stream.device());
    set_current_stream(stream);
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &Queue::of(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    auto& queue = Queue::of(stream);
    return queue.is_done(queue.last());
  }
  void synchronizeStream(const c10::Stream& stream) const override { host_sync(Queue::of(stream), "stream"); }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    for (Queue* queue : Queue::all()) {
      if (queue->stream().device_index() == device) {
        host_sync(*queue, "device");
      }
    }
  }

  void record(void** event,
              const c10::Stream& stream,
              c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new Event;
    }
    static_cast<Event*>(*event)->record(Queue::of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      as_event(event).block(Queue::of(stream));
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || as_event(event).queue->is_done(as_event(event).ticket);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      host_sync(*as_event(event).queue, as_event(event).ticket, as_event(event).clock, "event");
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (const auto block = Block::of(data)) {
      const std::lock_guard order(order_mutex());
      block->recorded_streams.push_back(Queue::of(stream).number());
    }
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device();
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto previous = current_device();
    set_current_device(device);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }
  c10::Device getDeviceFromPtr(void* data) const override { return device_of(data); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
};

/// The name is what `c10::Device("simulated:1")` is parsed by.
[[maybe_unused]] const bool guard_registered = [] {
  c10::register_privateuse1_backend("simulated");
  static const c10::impl::DeviceGuardImplRegistrar guard(kType, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(kType, device_allocator());
  return true;
}();

}  // namespace
}  // namespace mezzo::simulated
