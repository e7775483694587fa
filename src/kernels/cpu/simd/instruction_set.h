#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace mezzo::kernels::cpu {

/// What kernels are compiled for; a machine that has one has all before it. kAvx512Bf16 has VNNI, too.
enum class InstructionSet { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAvx512Amx };

/// baseline, avx2, avx512, avx512_bf16 or avx512_amx.
const char* name_of(InstructionSet set);

/// The best one that this machine has. Never kAvx512Amx: no machine has run its kernels yet.
InstructionSet best_instruction_set();

/// Whether the processor multiplies bfloat16 and int8 in AMX and Linux lets it. Asks Linux for this process.
bool has_amx();

/// The one that kernels are chosen for: the best, or a lesser one that the environment variable
/// MEZZO_CPU_CAPABILITY names, or kAvx512Amx if MEZZO_AMX is 1. Read once.
/// @throws c10::ValueError  for another value, and for MEZZO_AMX=1 without has_amx()
InstructionSet instruction_set();

/// Of tables for baseline and so on, in that order, the tables that `set` can run.
template <class Table, std::size_t count>
std::span<const Table* const> tables_for(InstructionSet set, const Table* const (&tables)[count]) {
  return {tables, std::min(count, static_cast<std::size_t>(set) + 1)};
}

}  // namespace mezzo::kernels::cpu
