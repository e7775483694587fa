#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/simd/instruction_set.h"

namespace mezzo::encoder::cpu {

namespace baseline {
extern const SimdKernels table;
}
#ifdef __x86_64__
namespace avx2 {
extern const SimdKernels table;
}
namespace avx512 {
extern const SimdKernels table;
}
namespace avx512_bf16 {
extern const SimdKernels table;
}
#endif

namespace {

constexpr const SimdKernels* kTables[] = {
    &baseline::table,
#ifdef __x86_64__
    &avx2::table,
    &avx512::table,
    &avx512_bf16::table,
#endif
};

}  // namespace

const SimdKernels& simd_kernels() {
  static const SimdKernels& chosen = *kernels::cpu::tables_for(kernels::cpu::instruction_set(), kTables).back();
  return chosen;
}

}  // namespace mezzo::encoder::cpu
