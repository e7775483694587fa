#include "kernels/cpu/simd/element_kernels.h"

#include "kernels/cpu/simd/instruction_set.h"

namespace mezzo::kernels::cpu {

namespace baseline {
extern const ElementKernels element_table;
}
#ifdef __x86_64__
namespace avx2 {
extern const ElementKernels element_table;
}
namespace avx512 {
extern const ElementKernels element_table;
}
#endif

namespace {

// None for AVX512-BF16, whose conversions take subnormal numbers for zeros.
constexpr const ElementKernels* kElementTables[] = {
    &baseline::element_table,
#ifdef __x86_64__
    &avx2::element_table,
    &avx512::element_table,
#endif
};

}  // namespace

const ElementKernels& element_kernels() {
  static const ElementKernels& chosen = *tables_for(instruction_set(), kElementTables).back();
  return chosen;
}

std::span<const ElementKernels* const> all_element_kernels() {
  return tables_for(best_instruction_set(), kElementTables);
}

}  // namespace mezzo::kernels::cpu
