#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace mezzo::kernels::cpu {

/// What kernels are compiled for; a machine that has one has all before it. The last one has VNNI, too.
enum class InstructionSet { kBaseline, kAvx2, kAvx512, kAvx512Bf16 };

/// baseline, avx2, avx512 or avx512_bf16.
const char* name_of(InstructionSet set);

/// The best one that this machine has.
InstructionSet best_instruction_set();

/// The one that kernels are chosen for: the best, or a lesser one that the environment variable
/// MEZZO_CPU_CAPABILITY names. Read once. @throws c10::ValueError  for another
InstructionSet instruction_set();

/// Of tables for baseline and so on, in that order, the tables that `set` can run.
template <class Table, std::size_t count>
std::span<const Table* const> tables_for(InstructionSet set, const Table* const (&tables)[count]) {
  return {tables, std::min(count, static_cast<std::size_t>(set) + 1)};
}

}  // namespace mezzo::kernels::cpu
