#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mezzo/amp/op_lists.h"
#include "mezzo/amp/op_policy.h"

namespace mezzo {

/// One op's line, with the data to apply it while the op is called.
struct OpPolicyEntryPoint {
  CastPolicy policy = CastPolicy::kUntouched;
  std::string op;                                 ///< in full
  std::optional<size_t> dtype_argument;           ///< kFloat32SetOptDtype: its index
  std::optional<c10::OperatorHandle> with_dtype;  ///< kFloat32AppendDtype: the overload that takes one
  std::vector<bool> is_optional;                  ///< of each argument
};

/// The contents of an OpPolicy: immutable once a guard carries it.
struct OpPolicyTable {
  /// The ops of PyTorch's own lists, listed or not, and whatever else was set.
  /// Other ops follow no policy.
  std::unordered_map<const c10::FunctionSchema*, OpPolicyEntryPoint> ops;
  bool is_built_in = false;  ///< PyTorch's lists, for a region with a log alone
  /// Functions wrapped by `autocast_function`.
  std::map<std::string, CastPolicy, std::less<>> functions;

  const OpPolicyEntryPoint* find(const c10::OperatorHandle& op) const {
    const auto found = ops.find(&op.schema());
    return found == ops.end() ? nullptr : &found->second;
  }
};

inline std::shared_ptr<const OpPolicyTable> table_of(const OpPolicy& policy) { return policy.table_; }

/// PyTorch's lists for a device type, marked as built in.
std::shared_ptr<const OpPolicyTable> built_in_table(c10::DeviceType device_type);

/// All ops that PyTorch autocasts on any device type, in full, with the policy on accelerators.
const std::map<std::string, CastPolicy>& known_policies();

/// The op of a full name, "aten::pow.Tensor_Scalar".
std::optional<c10::OperatorHandle> find_op(const std::string& full);

/// @throws c10::ValueError  for a policy that only ops can follow.
void check_function_policy(std::string_view name, CastPolicy policy);

/// Makes `name` known to OpPolicy::set. Thread-safe.
void register_function_name(const std::string& name);

}  // namespace mezzo
