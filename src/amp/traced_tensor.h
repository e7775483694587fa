#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>

#include "mezzo/amp/finite_tracer.h"

namespace mezzo {

/// Calls `visit` with each tensor in `value`, one or a list, that can hold inf or NaN. Such a tensor is defined, not
/// empty, floating or complex, strided or sparse COO, with memory. Of complex and sparse ones it gets the real values.
void visit_values(const at::IValue& value, const std::function<void(const at::Tensor&)>& visit);

/// Syncs; reads finite values once.
TracedTensor describe(std::string name, const at::Tensor& tensor);

/// Whether `value` is, or has in a list, a number that is inf or NaN.
bool is_non_finite_number(const at::IValue& value);

}  // namespace mezzo
