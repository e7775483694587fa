#ifdef __x86_64__
#include <cpuid.h>
#endif

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
namespace avx2_vnni {
extern const Int8Kernels int8_kernels;
extern const PeakLoops peak_loops;
}  // namespace avx2_vnni
namespace avx512_amx {
extern const ProductKernels product_kernels;
extern const Int8Kernels int8_kernels;
extern const PeakLoops peak_loops;
}  // namespace avx512_amx
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

#ifdef __x86_64__
/// AVX-VNNI, which processors without AVX-512 may have. clang 16 has no name for it.
bool has_avx_vnni() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1u << 4) != 0;
}
#endif

}  // namespace

const SimdKernels& simd_kernels() {
  static const SimdKernels chosen = [] {
    const auto set = kernels::cpu::instruction_set();
    SimdKernels table = *kernels::cpu::tables_for(set, kTables).back();
#ifdef __x86_64__
    if (set == kernels::cpu::InstructionSet::kAvx2 && has_avx_vnni()) {
      table.int8 = &avx2_vnni::int8_kernels;
      table.peak = &avx2_vnni::peak_loops;
    }
    if (set == kernels::cpu::InstructionSet::kAvx512Amx) {
      table.products = &avx512_amx::product_kernels;
      table.int8 = &avx512_amx::int8_kernels;
      table.peak = &avx512_amx::peak_loops;
    }
#endif
    return table;
  }();
  return chosen;
}

}  // namespace mezzo::encoder::cpu
