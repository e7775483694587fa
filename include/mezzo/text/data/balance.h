#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <vector>

namespace mezzo::text {

/// Divides the texts of one global batch among ranks so that all get a similar number of tokens.
/// The longest text comes first, and each goes to the rank with the fewest tokens so far. The
/// fullest rank gets at most 4/3 - 1/(3 num_ranks) of the optimum (Graham 1969, "Bounds on
/// multiprocessing timing anomalies").
///
/// A pure function: all ranks call it with the same lengths. Ranks may get different numbers of
/// texts, so weight gradients by texts, not by ranks.
/// @param lengths  tokens of each text, at least 0
/// @return One ascending list of indices into `lengths` per rank; each index is in exactly one
///     list. No list is empty if there are at least `num_ranks` texts.
/// @throws c10::ValueError  for less than one rank, or a negative length
std::vector<std::vector<int64_t>> balance_by_tokens(const std::vector<int64_t>& lengths, int64_t num_ranks);

}  // namespace mezzo::text
