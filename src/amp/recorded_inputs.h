#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

namespace mezzo {

/// `function.inputs()`, in a start callback. That one, inline, asserts a flag where mezzo is
/// compiled without NDEBUG, and LibTorch, compiled with it, never sets the flag.
c10::ArrayRef<const c10::IValue> recorded_inputs(const at::RecordFunction& function);

}  // namespace mezzo
