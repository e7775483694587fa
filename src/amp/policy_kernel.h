#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

namespace mezzo {

/// The kernel of kPolicyKey: called for every op while this thread has a region. It casts the
/// arguments of ops that a policy lists, and passes by the built-in autocast kernel; where a region
/// has only a log, it lets that kernel do its work, and watches.
void call_by_policy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace mezzo
