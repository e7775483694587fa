#pragma once

#include "mezzo/cpp20.h"

#include <c10/core/DeviceType.h>

#include <string>
#include <string_view>
#include <vector>

namespace mezzo {

/// The action of autocast on the arguments of an op before it runs. Only eligible tensors are cast:
/// on the device type of the region, floating, and not float64.
enum class CastPolicy {
  kLowerPrecision,      ///< cast to the autocast dtype
  kFloat32,             ///< cast to float32
  kFloat32SetOptDtype,  ///< run in the input's dtype, with the optional `dtype` argument set to float32 unless given
  kFloat32AppendDtype,  ///< the same for ops that take `dtype` in a separate overload (norm)
  kPromote,             ///< cast to the widest dtype among the arguments
  kBanned,              ///< refuse to run
  kUntouched,           ///< leave the arguments as they are; inner ops still follow their policies
};

/// PyTorch's name of the policy: "lower_precision_fp", "fp32", "fp32_set_opt_dtype",
/// "fp32_append_dtype", "promote" or "banned"; or "untouched".
std::string_view to_string(CastPolicy policy);

/// The inverse of `to_string`.
/// @throws c10::ValueError  for any other word; the message lists the valid words
CastPolicy parse_cast_policy(std::string_view word);

/// One op and its policy.
struct OpPolicyEntry {
  std::string op;     ///< with its overload, as the dispatcher spells it: "aten::mm", "aten::pow.Tensor_Scalar"
  CastPolicy policy;  ///< its line in the list
  /// Equal op and policy.
  bool operator==(const OpPolicyEntry&) const = default;
};

/// The ops that autocast on `device_type` casts, by policy, then by name. An op is listed if this
/// process has an autocast kernel for it on that device type. The policies are PyTorch 2.13's.
/// In-place and `out=` forms are never cast. Ops that are not listed run in the dtype of their
/// arguments.
///
/// In PyTorch 2.13, kCPU has 127 ops, kCUDA 119, kXPU, kMTIA and kMAIA 117 and kMPS 95. The
/// backends of kPrivateUse1, kHPU, kIPU and kXLA register their ops when they are loaded.
/// Thread-safe.
/// @throws c10::ValueError  for a device type without autocast
std::vector<OpPolicyEntry> autocast_ops(c10::DeviceType device_type);

}  // namespace mezzo
