#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mezzo/distributed/group/process_group.h"

namespace mezzo::distributed {

/// The first line in which two ranks differ.
struct RankDifference {
  int rank;                          ///< the first that differs from rank 0
  std::optional<std::string> here;   ///< rank 0's line; nullopt if it has no more
  std::optional<std::string> there;  ///< that of `rank`
};

/// Compares properties that all ranks must share, line by line; lines may hold any characters.
/// Where all ranks have the same, only a hash of them travels. Collective; the same answer on all
/// ranks, nullopt where nothing differs.
std::optional<RankDifference> compare_ranks(ProcessGroup& group, const std::vector<std::string>& lines);

}  // namespace mezzo::distributed
