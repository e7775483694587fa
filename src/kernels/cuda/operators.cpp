#include "kernels/cuda/operators.h"

#include <ATen/ops/empty_like.h>

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/tensors.h"

namespace mezzo::kernels::MEZZO_CUDA {

at::Tensor dropout(const at::Tensor& x, double p, const RandomKey& key) {
  auto out = at::empty_like(x, at::MemoryFormat::Contiguous);
  if (x.numel() > 0) {
    const OnDeviceOf device(x);
    dropout(DropoutArguments{span_of(x), span_of(out), x.numel(), mask_of(p, key)}, device.stream);
  }
  return out;
}

#define MEZZO_ENTRY(name) .name = name,
const DeviceKernels kDeviceKernels = {MEZZO_FOR_DEVICE_KERNELS(MEZZO_ENTRY)};
#undef MEZZO_ENTRY

}  // namespace mezzo::kernels::MEZZO_CUDA
