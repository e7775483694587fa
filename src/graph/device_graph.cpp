#include "graph/device_graph.h"

#include <array>
#include <atomic>

#ifdef MEZZO_HAS_CUDA
#include "graph/cuda/graphs.h"
#endif

namespace mezzo {
namespace {

std::atomic<MakeDeviceGraphs>& maker_of(c10::DeviceType type) {
  static std::array<std::atomic<MakeDeviceGraphs>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> makers{};
  return makers.at(static_cast<size_t>(type));
}

}  // namespace

void register_device_graphs(c10::DeviceType type, MakeDeviceGraphs make) { maker_of(type) = make; }

std::unique_ptr<DeviceGraphs> make_device_graphs(c10::Device device) {
  if (const auto make = maker_of(device.type()).load()) {
    return make(device);
  }
#ifdef MEZZO_HAS_CUDA
  if (device.is_cuda()) {
    return cuda::make_graphs(device);
  }
#endif
  return nullptr;
}

}  // namespace mezzo
