#pragma once

#include "mezzo/cpp20.h"

#include <c10/core/DeviceType.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/amp/op_lists.h"

namespace mezzo {

struct OpPolicyTable;

/// An op list for an AutocastGuard: for every op, the action of autocast on its arguments. Start
/// from a preset and change lines.
///
/// @code
/// auto policy = mezzo::OpPolicy::preset("cuda");
/// policy.set("layer_norm", mezzo::CastPolicy::kUntouched)
///       .set("gelu", mezzo::CastPolicy::kFloat32);
/// mezzo::AutocastGuard autocast(torch::kCUDA, torch::kHalf, mezzo::AutocastOptions().policy(policy));
/// @endcode
///
/// Lines are overload-exact, as in PyTorch: "pow.Tensor_Scalar" is one op and "pow.Scalar" another.
/// "mm" is the overload without a name. An op that is not listed runs in the dtype of its
/// arguments. Inner ops follow their own lines: einsum left untouched still multiplies by bmm.
///
/// A value type: copies are cheap and independent. Copying and reading are thread-safe, `set` is
/// not. Never syncs.
class OpPolicy {
 public:
  /// An empty list: every op runs in the dtype of its arguments.
  OpPolicy();

  /// The preset of that name, from `preset_names()`:
  /// * `"cuda"`, `"cpu"`: the `autocast_ops` of that device type, for use on any device.
  /// * `"cuda_2020"`: "cuda", but only the 18 ops that the first torch.cuda.amp (PyTorch 1.6) cast
  ///   are in lower precision.
  /// * `"norms_stay_low"`: "cuda" without float32 for layer_norm, native_layer_norm and rms_norm.
  ///   Their outputs stay half as wide.
  /// * `"masks_fp32"`: "cuda" with masked_fill in float32. So a mask value such as -1e9, which
  ///   float16 cannot hold, raises no error. In-place masked_fill_ is never cast.
  /// @throws c10::ValueError  for any other name; the message lists the valid names
  static OpPolicy preset(std::string_view name);
  /// The names that `preset` takes.
  static std::span<const std::string_view> preset_names();

  /// The list of an AutocastGuard without a policy: the lines of `autocast_ops(device_type)`.
  /// @throws c10::ValueError  for a device type without autocast
  static OpPolicy built_in(c10::DeviceType device_type);

  /// Sets the line of one op: "mm", "pow.Tensor_Scalar" or "mylib::my_op". The namespace defaults
  /// to "aten::". Also accepts the name of a function wrapped by `autocast_function`.
  /// @throws c10::ValueError  for an op that does not exist; the message lists the existing
  ///     overloads
  /// @throws c10::ValueError  for an op that writes to its arguments, which must not be cast
  /// @throws c10::ValueError  for a policy that needs a `dtype` argument, if the op has none
  OpPolicy& set(std::string_view op, CastPolicy policy);

  /// The line of one op; kUntouched if it is not listed.
  /// @throws c10::ValueError  for an op that does not exist
  CastPolicy get(std::string_view op) const;

  /// All lines except kUntouched ones, by policy, then by name.
  std::vector<OpPolicyEntry> lines() const;

 private:
  friend std::shared_ptr<const OpPolicyTable> table_of(const OpPolicy& policy);
  OpPolicyTable& own_table();

  std::shared_ptr<OpPolicyTable> table_;
};

}  // namespace mezzo
