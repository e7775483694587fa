#include "kernels/cpu/simd/instruction_set.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

namespace mezzo::kernels::cpu {
namespace {

constexpr const char* kNames[] = {"baseline", "avx2", "avx512", "avx512_bf16"};

InstructionSet chosen() {
  const auto best = best_instruction_set();
  const char* wanted = std::getenv("MEZZO_CPU_CAPABILITY");
  if (wanted == nullptr) {
    return best;
  }
  const auto number = std::find(std::begin(kNames), std::end(kNames), std::string_view(wanted)) - std::begin(kNames);
  TORCH_CHECK_VALUE(number <= static_cast<int>(best), "MEZZO_CPU_CAPABILITY is '", wanted,
                    "', which this machine or mezzo does not support. Set baseline, avx2, avx512 or avx512_bf16, or "
                    "unset it for the best");
  return static_cast<InstructionSet>(number);
}

}  // namespace

const char* name_of(InstructionSet set) { return kNames[static_cast<size_t>(set)]; }

InstructionSet best_instruction_set() {
#ifdef __x86_64__
  // The levels x86-64-v3 and v4, by the features that compilers can ask for; the rest came with them.
  const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (has_v4) {
    const bool has_bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    return has_bf16 ? InstructionSet::kAvx512Bf16 : InstructionSet::kAvx512;
  }
  if (has_v3) {
    return InstructionSet::kAvx2;
  }
#endif
  return InstructionSet::kBaseline;
}

InstructionSet instruction_set() {
  static const InstructionSet set = chosen();
  return set;
}

}  // namespace mezzo::kernels::cpu
