#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace mezzo::text {

constexpr size_t kMostMistakes = 20;

/// How sure a wrong prediction is, and its number.
using SureMistake = std::pair<double, int64_t>;

/// The kMostMistakes surest, the surest first, of equally sure ones the first.
std::vector<SureMistake> surest(std::vector<SureMistake> wrong);

}  // namespace mezzo::text
