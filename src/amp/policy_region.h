#pragma once

#include <c10/core/DeviceType.h>

#include <memory>
#include <vector>

#include "amp/op_policy_table.h"

namespace mezzo {

class CastLog;
struct PolicyThread;

/// The state that a guard with a policy or a log adds to the autocast state of its thread.
struct PolicyRegion {
  std::shared_ptr<const OpPolicyTable> policy;  ///< null: PyTorch's own autocast kernels run
  CastLog* log = nullptr;

  /// This thread's innermost for a device type; nullptr outside of any.
  static const PolicyRegion* current(c10::DeviceType device_type);
  /// Whether that one has a policy of the user's.
  static bool has_policy(c10::DeviceType device_type);
  /// Its log; may be null.
  static CastLog* current_log(c10::DeviceType device_type);
  /// The device types for which this thread has one, in the order in which they were opened.
  static std::vector<c10::DeviceType> open_device_types();
};

/// Puts a PolicyRegion in force on this thread while it lives. Guards end in the reverse order of
/// their start. A region with a log alone follows PyTorch's lists by mezzo's kernel.
///
/// Works by a dispatch key above all autocast keys, included while a region is open, whose one
/// boxed kernel sees every op (see call_by_policy). So nothing that other threads see is changed.
/// Whether autocast is enabled, and to which dtype, stays PyTorch's state.
class PolicyRegionGuard {
 public:
  /// @throws c10::Error  as PolicyThread::ready; nothing has changed then.
  PolicyRegionGuard(c10::DeviceType device_type, PolicyRegion region);
  ~PolicyRegionGuard();
  PolicyRegionGuard(const PolicyRegionGuard&) = delete;
  PolicyRegionGuard& operator=(const PolicyRegionGuard&) = delete;

 private:
  PolicyThread& thread_;
  c10::DeviceType device_type_;
  PolicyRegion region_;
  const PolicyRegion* outer_;
  bool was_included_;
};

}  // namespace mezzo
