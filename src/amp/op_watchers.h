#pragma once

#include <cstdint>

namespace mezzo {

/// The number of CastLogs and FiniteTracers that this thread has been given so far, to look at each op it runs. Code
/// that replays ops of one run can tell from it whether one of them was meant to see them.
inline int64_t& op_watchers_begun() {
  thread_local int64_t begun = 0;
  return begun;
}

}  // namespace mezzo
