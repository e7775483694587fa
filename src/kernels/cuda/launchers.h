#pragma once

#include "kernels/cuda/arguments.h"

/// The kernels, each queued on a stream of the current device.
namespace mezzo::kernels::MEZZO_CUDA {

/// `count` elements of `x`, dropped or scaled, to `out`, of the same type.
struct DropoutArguments {
  Span x, out;
  int64_t count;
  Mask mask;
};
void dropout(const DropoutArguments& arguments, Stream stream);

}  // namespace mezzo::kernels::MEZZO_CUDA
