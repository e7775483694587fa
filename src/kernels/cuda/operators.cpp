#include "kernels/cuda/operators.h"

namespace mezzo::kernels::MEZZO_CUDA {

#define MEZZO_ENTRY(name) .name = name,
const DeviceKernels kDeviceKernels = {MEZZO_FOR_DEVICE_KERNELS(MEZZO_ENTRY)};
#undef MEZZO_ENTRY

}  // namespace mezzo::kernels::MEZZO_CUDA
