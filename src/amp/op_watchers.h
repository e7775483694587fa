#pragma once

#include <cstdint>

namespace mezzo {

/// How many CastLogs and FiniteTracers this thread has been given so far, to look at each op it
/// runs: who replays ops that ran once can tell whether one of them was meant to see them.
inline int64_t& op_watchers_begun() {
  thread_local int64_t begun = 0;
  return begun;
}

}  // namespace mezzo
