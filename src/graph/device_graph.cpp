#include "graph/device_graph.h"

#include "kernels/per_device.h"

namespace mezzo {
namespace {

PerDevice<MakeDeviceGraphs>& makers() {
  static PerDevice<MakeDeviceGraphs> makers(&CudaLibrary::make_graphs);
  return makers;
}

}  // namespace

void register_device_graphs(c10::DeviceType type, MakeDeviceGraphs make) { makers().set(type, make); }

std::unique_ptr<DeviceGraphs> make_device_graphs(c10::Device device) {
  const auto make = makers().of(device.type());
  return make != nullptr ? make(device) : nullptr;
}

}  // namespace mezzo
