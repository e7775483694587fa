#pragma once

#include "mezzo/cpp20.h"

#include <c10/core/DeviceType.h>

#include <string>
#include <string_view>
#include <vector>

namespace mezzo {

/// What autocast does to the arguments of an op before it runs. Only eligible tensors are cast: on
/// the region's device type, floating, and not float64.
enum class CastPolicy {
  kLowerPrecision,      ///< cast to the autocast dtype
  kFloat32,             ///< cast to float32
  kFloat32SetOptDtype,  ///< run in the input's dtype, with the optional `dtype` argument set to float32 unless given
  kFloat32AppendDtype,  ///< the same for ops whose overload with a `dtype` argument is another one (norm)
  kPromote,             ///< cast to the widest dtype among the arguments
  kBanned,              ///< refuse to run
  kUntouched,           ///< leave the arguments as they are; what the op is made of still follows its own policies
};

/// PyTorch's own word for it: "lower_precision_fp", "fp32", "fp32_set_opt_dtype",
/// "fp32_append_dtype", "promote", "banned"; and "untouched".
std::string_view to_string(CastPolicy policy);

/// The reverse of `to_string`.
/// @throws c10::ValueError  that lists the words, for any other.
CastPolicy parse_cast_policy(std::string_view word);

/// One op and its policy.
struct OpPolicyEntry {
  std::string op;  ///< with its overload, as the dispatcher spells it: "aten::mm", "aten::pow.Tensor_Scalar"
  CastPolicy policy;
  bool operator==(const OpPolicyEntry&) const = default;
};

/// The ops that autocast on `device_type` casts, by policy, then by name: those for which this
/// process has an autocast kernel of the device type. Their policies are PyTorch 2.13's. There,
/// kCPU has 127 ops, kCUDA 119, kXPU, kMTIA and kMAIA 117 and kMPS 95. kPrivateUse1, kHPU, kIPU and
/// kXLA have the ops that their backend registers, and none before it is loaded. Ops that are not
/// listed run in the dtype of their arguments. In-place and `out=` forms are never cast. Thread-safe.
/// @throws c10::ValueError  for a device type without autocast
std::vector<OpPolicyEntry> autocast_ops(c10::DeviceType device_type);

}  // namespace mezzo
