#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <vector>

namespace mezzo::text {

/// Divides the texts of one global batch among ranks so that all get nearly equally many tokens:
/// longest first, each to the rank with the fewest tokens so far. At most, the fullest rank gets
/// 4/3 - 1/(3 num_ranks) of what the best division would give it (Graham 1969, "Bounds on
/// multiprocessing timing anomalies"). A pure function: all ranks call it with the same lengths.
/// Ranks may get unequally many texts, so weigh gradients by texts, not by ranks.
/// @param lengths  tokens of each text, at least 0
/// @return one list of indices into `lengths` a rank, ascending; each index is in exactly one. None
///     is empty where there are at least `num_ranks` texts.
/// @throws c10::ValueError  for less than one rank, or a negative length
std::vector<std::vector<int64_t>> balance_by_tokens(const std::vector<int64_t>& lengths, int64_t num_ranks);

}  // namespace mezzo::text
