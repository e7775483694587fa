#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <vector>

#include "amp/op_policy_table.h"

namespace mezzo {

class CastLog;

/// What a guard with a policy or a log adds to the autocast state of its thread.
struct PolicyRegion {
  std::shared_ptr<const OpPolicyTable> policy;
  CastLog* log = nullptr;

  /// This thread's innermost for a device type; nullptr outside of any.
  static const PolicyRegion* current(c10::DeviceType device_type);
  /// The device types for which this thread has one, in the order in which they were opened.
  static std::vector<c10::DeviceType> open_device_types();
};

/// Puts a PolicyRegion in force on this thread while it lives. Guards end in the reverse order of their start.
///
/// Works by a dispatch key above all autocast keys, included while a region is open, whose one boxed kernel sees every
/// op: it casts the arguments of those that the policy lists, and passes by PyTorch's own autocast kernel. So nothing
/// that other threads see is changed. Whether autocast is enabled, and to which dtype, stays PyTorch's state.
class PolicyRegionGuard {
 public:
  PolicyRegionGuard(c10::DeviceType device_type, PolicyRegion region);
  ~PolicyRegionGuard();
  PolicyRegionGuard(const PolicyRegionGuard&) = delete;
  PolicyRegionGuard& operator=(const PolicyRegionGuard&) = delete;

 private:
  c10::DeviceType device_type_;
  PolicyRegion region_;
  const PolicyRegion* outer_;
};

}  // namespace mezzo
