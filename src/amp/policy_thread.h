#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DeviceType.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <array>

#include "amp/cast_cache.h"

namespace mezzo {

struct PolicyRegion;

/// The dispatch key whose kernel sees every op while a region with a policy or a log is open.
///
/// It has to lie above all autocast keys, be included thread by thread, and have no backend fallback yet. Of c10's keys
/// that leaves two. One is for c10's own tests ("Don't use it for anything real"). This one is meant for a mode from
/// outside of LibTorch, torchdistx's, which is no longer maintained.
constexpr auto kPolicyKey = c10::DispatchKey::DeferredInit;

/// The key of a device type's autocast kernels.
c10::DispatchKey autocast_key(c10::DeviceType device_type);

/// The state of a thread's open regions.
struct PolicyThread {
  std::array<const PolicyRegion*, c10::COMPILE_TIME_MAX_DEVICE_TYPES> innermost{};  // by device type
  c10::SmallVector<c10::DeviceType, 2> device_types;                                // types that have a region
  c10::DispatchKeySet autocast;                                                     // their autocast keys
  CastCache cache;

  /// Of this thread; nullptr outside of regions.
  static PolicyThread* current();

  /// Of this thread, for a region to be opened.
  /// @throws c10::Error  if another library has taken kPolicyKey, or a second copy of mezzo is in
  ///   this process
  static PolicyThread& ready();
};

/// The kernel of kPolicyKey: called for every op while this thread has a region. It casts the
/// arguments of ops that a policy lists, and skips the built-in autocast kernel. If a region has
/// only a log, that kernel runs, and its casts are recorded.
void call_by_policy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace mezzo
