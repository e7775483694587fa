#include "kernels/cpu/simd/instruction_set.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mezzo::kernels::cpu {
namespace {

constexpr const char* kNames[] = {"baseline", "avx2", "avx512", "avx512_bf16", "avx512_amx"};

/// The best, or what MEZZO_CPU_CAPABILITY names.
InstructionSet best_or_named() {
  const auto best = best_instruction_set();
  const char* wanted = std::getenv("MEZZO_CPU_CAPABILITY");
  if (wanted == nullptr) {
    return best;
  }
  const auto number = std::find(std::begin(kNames), std::end(kNames), std::string_view(wanted)) - std::begin(kNames);
  TORCH_CHECK_VALUE(number <= static_cast<int>(best), "MEZZO_CPU_CAPABILITY is '", wanted,
                    "', which this machine or mezzo does not support. Set baseline, avx2, avx512 or avx512_bf16, or "
                    "unset it for the best. For AMX, set MEZZO_AMX=1");
  return static_cast<InstructionSet>(number);
}

InstructionSet chosen() {
  const auto set = best_or_named();
  const char* amx = std::getenv("MEZZO_AMX");
  const std::string_view wanted = amx == nullptr ? "0" : amx;
  TORCH_CHECK_VALUE(wanted == "0" || wanted == "1", "MEZZO_AMX is '", wanted, "'. Set 1 for AMX, or 0");
  if (wanted == "0") {
    return set;
  }
  TORCH_CHECK_VALUE(has_amx(),
                    "MEZZO_AMX is 1, but this processor has no AMX for bf16 and int8, or Linux does not "
                    "allow it. Unset MEZZO_AMX");
  TORCH_CHECK_VALUE(set == InstructionSet::kAvx512Bf16, "MEZZO_AMX is 1, but the kernels run in ", name_of(set),
                    ", and AMX needs avx512_bf16. Unset MEZZO_CPU_CAPABILITY or MEZZO_AMX");
  return InstructionSet::kAvx512Amx;
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

bool has_amx() {
#if defined(__x86_64__) && defined(__linux__)
  static const bool is_allowed = [] {
    constexpr unsigned int kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, for all threads
    unsigned int a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (~d & (kBf16 | kTile | kInt8)) == 0 &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return is_allowed;
#else
  return false;
#endif
}

InstructionSet instruction_set() {
  static const InstructionSet set = chosen();
  return set;
}

}  // namespace mezzo::kernels::cpu
