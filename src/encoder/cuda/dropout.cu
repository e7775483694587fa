#include "encoder/cuda/mask.h"
#include "encoder/cuda/row_launchers.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

/// A thread a Philox block, which decides four elements.
template <class T>
struct DropoutKernel {
  static constexpr int kThreads = 256;

  template <class Memory>
  static void uses(Memory& memory, const DropoutArguments& a) {
    memory.reads(a.x, a.count);
    memory.reads(a.mask.step_offset, 1);
    memory.writes(a.out, a.count);
  }

  MEZZO_DEVICE static void run(const Block& block, const DropoutArguments& a) {
    const int64_t number = block.index() * kThreads + block.thread(), first = 4 * number;
    if (first >= a.count) {
      return;
    }
    const T* x = static_cast<const T*>(a.x.data) + first;
    T* out = static_cast<T*>(a.out.data) + first;
    float factors[4];
    mask_factors(a.mask, number, factors);
    for (int i = 0; i < 4; ++i) {
      if (first + i < a.count) {
        out[i] = factors[i] == 0 ? from_float<T>(0) : from_float<T>(to_float(x[i]) * factors[i]);
      }
    }
  }
};

}  // namespace

void dropout(const DropoutArguments& arguments, Stream stream) {
  with_type(arguments.x.element, [&]<class T>(T) {
    using Kernel = DropoutKernel<T>;
    launch<Kernel>(Grid{ceil_div(arguments.count, 4 * Kernel::kThreads), Kernel::kThreads}, stream, arguments);
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
