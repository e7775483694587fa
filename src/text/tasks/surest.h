#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

constexpr size_t kMostMistakes = 20;

/// How sure a wrong prediction is, and its number.
using SureMistake = std::pair<double, int64_t>;

/// The kMostMistakes surest, the surest first, of equally sure ones the first.
std::vector<SureMistake> surest(std::vector<SureMistake> wrong);

/// Of rows with one label each, those whose label `is` was not `predicted`, as many and in the order of surest().
/// @param probabilities  [rows, labels] float64
std::vector<Mistake> surest_mistakes(const at::Tensor& probabilities,
                                     std::span<const int64_t> is,
                                     std::span<const int64_t> predicted,
                                     const std::vector<std::string>& names);

}  // namespace mezzo::text
