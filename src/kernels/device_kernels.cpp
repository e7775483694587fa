#include "kernels/device_kernels.h"

#include "kernels/per_device.h"

namespace mezzo::kernels {
namespace {

PerDevice<const DeviceKernels*>& table() {
  static PerDevice<const DeviceKernels*> table(&CudaLibrary::kernels, {{c10::kCPU, &cpu::kDeviceKernels}});
  return table;
}

}  // namespace

#define MEZZO_ENTRY(name) .name = name,
namespace reference {
const DeviceKernels kDeviceKernels = {MEZZO_FOR_DEVICE_KERNELS(MEZZO_ENTRY)};
}
namespace cpu {
const DeviceKernels kDeviceKernels = {MEZZO_FOR_DEVICE_KERNELS(MEZZO_ENTRY)};
}
#undef MEZZO_ENTRY

void set_device_kernels(c10::DeviceType device_type, const DeviceKernels* kernels) {
  table().set(device_type, kernels);
}

const DeviceKernels& device_kernels(c10::Device device) {
  const DeviceKernels* kernels = table().of(device);
  return kernels != nullptr ? *kernels : reference::kDeviceKernels;
}

}  // namespace mezzo::kernels
