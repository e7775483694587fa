#include <c10/util/Exception.h>

#include <cstdlib>
#include <string_view>

#include "encoder/cpu/simd/kernels.h"

namespace mezzo::kernels::cpu {

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

SimdKernelList all_simd_kernels() {
  SimdKernelList list{{&baseline::table}, 1};
#ifdef __x86_64__
  if (__builtin_cpu_supports("x86-64-v3")) list.kernels[list.count++] = &avx2::table;
  if (__builtin_cpu_supports("x86-64-v4")) list.kernels[list.count++] = &avx512::table;
  if (list.count == 3 && __builtin_cpu_supports("avx512bf16")) list.kernels[list.count++] = &avx512_bf16::table;
#endif
  return list;
}

const SimdKernels& simd_kernels() {
  static const SimdKernels& chosen = [&]() -> const SimdKernels& {
    const auto list = all_simd_kernels();
    const char* wanted = std::getenv("MEZZO_CPU_CAPABILITY");
    if (wanted == nullptr) {
      return *list.kernels[list.count - 1];
    }
    for (int i = 0; i < list.count; ++i) {
      if (std::string_view(list.kernels[i]->name) == wanted) {
        return *list.kernels[i];
      }
    }
    TORCH_CHECK_VALUE(false, "MEZZO_CPU_CAPABILITY is '", wanted,
                      "', which this machine cannot run or mezzo does not know: "
                      "baseline, avx2, avx512, avx512_bf16; leave it unset for the best");
  }();
  return chosen;
}

}  // namespace mezzo::kernels::cpu
