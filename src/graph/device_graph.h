#pragma once

#include <c10/core/Device.h>

#include <memory>

/// What GraphedStep asks of a kind of device. (LibTorch 2.12 has at::accelerator::Graph for that,
/// with which 2.13 does not register CUDA's graphs.)
namespace mezzo {

/// Work of one stream, recorded once, to be done again and again on the same memory. One that is
/// destroyed while it records leaves the stream as it was before.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// From now on, work on the current stream is recorded instead of done, from any thread. The
  /// stream must not be the device's default stream. Memory that is allocated for it meanwhile is
  /// of the graphs' pool and stays there. May sync the device.
  virtual void begin() = 0;
  /// Ends that; the current stream must be the same. The stream does its work again from now on, also if this throws.
  /// @throws c10::Error  if something made the recording void.
  virtual void end() = 0;
  /// Queues the recorded work on the current stream. Never syncs.
  virtual void replay() = 0;
};

/// Graphs of one device that share a pool of memory. They must not be replayed at the same time. A
/// replay overwrites the memory of the other graphs in the pool, including their results.
class DeviceGraphs {
 public:
  virtual ~DeviceGraphs() = default;
  /// @param goes_on  it is recorded and replayed right after the last one, and reads what that one leaves
  virtual std::unique_ptr<DeviceGraph> new_graph(bool goes_on) = 0;
  /// Whether the current stream is being recorded, by whomever.
  virtual bool is_recording() const = 0;
};

using MakeDeviceGraphs = std::unique_ptr<DeviceGraphs> (*)(c10::Device device);

/// From now on, `make` is asked for the graphs of devices of this type.
void register_device_graphs(c10::DeviceType type, MakeDeviceGraphs make);

/// Null where devices of this type have no graphs, or none that this mezzo was built with.
std::unique_ptr<DeviceGraphs> make_device_graphs(c10::Device device);

}  // namespace mezzo
