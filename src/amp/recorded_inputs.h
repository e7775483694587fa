#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

namespace mezzo {

/// `function.inputs()`, in a start callback, whatever way mezzo is compiled (see the source).
c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& function);

}  // namespace mezzo
