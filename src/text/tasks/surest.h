#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/text/tasks/task.h"

namespace mezzo::text {

/// The rows that are wrong, twenty at most, the surest first; of equally sure rows the first.
/// @param is_wrong  [rows] bool
/// @param sureness  [rows] float64
std::vector<int64_t> surest(const at::Tensor& is_wrong, const at::Tensor& sureness);

/// Of rows with one label each, the mistakes that surest() gives.
/// @param probabilities  [rows, labels] float64
/// @param is, predicted  [rows] int64
std::vector<Mistake> surest_mistakes(const at::Tensor& probabilities,
                                     const at::Tensor& is,
                                     const at::Tensor& predicted,
                                     const std::vector<std::string>& names);

}  // namespace mezzo::text
