#pragma once

#include "mezzo/cpp20.h"

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <bitset>
#include <memory>
#include <string>
#include <vector>

#include "mezzo/amp/module_scope.h"
#include "mezzo/amp/op_policy.h"

namespace mezzo {

class CastLog;
class PolicyRegionGuard;

/// The autocast settings of a thread, from AutocastGuards or Python's `torch.autocast`. For each
/// device type it holds on or off, dtype, op policy and log. It also holds whether casts are
/// cached, and the ModuleScope path. Take it on one thread, and pass it to an AutocastStateGuard on
/// another.
///
/// @code
/// const auto state = mezzo::AutocastState::current();
/// std::thread worker([&] {
///   const mezzo::AutocastStateGuard autocast(state);
///   output = model->forward(input);  // as it would run on the thread that started this one
/// });
/// @endcode
class AutocastState {
 public:
  /// The state of this thread.
  static AutocastState current();

  /// The same without the CastLogs, for a guard that may outlive them.
  AutocastState without_log() const;

 private:
  friend class AutocastStateGuard;
  struct Device {
    c10::DeviceType type;
    bool enabled;
    c10::ScalarType dtype;
  };
  struct Policy {
    c10::DeviceType type;
    std::shared_ptr<const OpPolicyTable> table;
    CastLog* log;
  };

  void set() const;

  std::vector<Device> devices_;
  std::vector<Policy> policies_;  // outermost first
  bool cache_enabled_ = true;
  bool in_region_ = false;  // so that another thread's region is not the outermost, and leaves the cache alone
  std::string module_path_;
};

/// Applies an AutocastState to this thread during its lifetime, including the ModuleScope path, and
/// then restores the previous state. Guards nest, also with AutocastGuard.
///
/// A log in the state must outlive the guard. The autocast region of the state must stay open
/// equally long. Its end clears PyTorch's cache of cast weights, which is shared by all threads.
class AutocastStateGuard {
 public:
  /// Applies `state` to this thread.
  [[nodiscard]] explicit AutocastStateGuard(AutocastState state);
  ~AutocastStateGuard();
  AutocastStateGuard(const AutocastStateGuard&) = delete;
  AutocastStateGuard& operator=(const AutocastStateGuard&) = delete;

 private:
  AutocastStateGuard(AutocastState state, AutocastState previous);

  bool use_cast_cache();

  AutocastState state_, previous_;
  ModuleScope scope_;
  std::bitset<c10::COMPILE_TIME_MAX_DEVICE_TYPES> uses_cast_cache_;  // by device type
  std::vector<std::unique_ptr<PolicyRegionGuard>> policies_;
};

}  // namespace mezzo
