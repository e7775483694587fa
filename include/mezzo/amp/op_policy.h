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

/// Says for every op what autocast does to its arguments: an op list of your own, for an
/// AutocastGuard to carry. Start from a preset, change lines.
///
/// @code
/// auto policy = mezzo::OpPolicy::preset("cuda");
/// policy.set("layer_norm", mezzo::CastPolicy::kUntouched)
///       .set("gelu", mezzo::CastPolicy::kFloat32);
/// mezzo::AutocastGuard autocast(torch::kCUDA, torch::kHalf, mezzo::AutocastOptions().policy(policy));
/// @endcode
///
/// Lines are overload-exact, as PyTorch's are: "pow.Tensor_Scalar" is one op and "pow.Scalar"
/// another; "mm" is the overload without a name. An op that is not listed runs in whatever dtype
/// its arguments have. What an op is made of follows its own lines: einsum left untouched still
/// multiplies by bmm.
///
/// A value: copies are cheap and independent. Copying and reading are thread-safe, `set` is not.
/// Never syncs.
class OpPolicy {
 public:
  /// Lists nothing: every op runs in the dtype of its arguments.
  OpPolicy();

  /// One of `preset_names()`:
  /// - "cuda", "cpu": `autocast_ops` of these device types, to be used with any;
  /// - "cuda_2020": "cuda" with only the 18 ops in lower precision that the first torch.cuda.amp
  ///   (PyTorch 1.6) cast;
  /// - "norms_stay_low": "cuda" without float32 forced on layer_norm, native_layer_norm and
  ///   rms_norm, so that their outputs stay half as wide;
  /// - "masks_fp32": "cuda" with masked_fill in float32, so that a mask value such as -1e9, which
  ///   float16 cannot hold, is no error. In-place masked_fill_ is never cast.
  /// @throws c10::ValueError  that lists the names, for any other
  static OpPolicy preset(std::string_view name);
  static std::span<const std::string_view> preset_names();

  /// What AutocastGuard does without a policy: the lines of `autocast_ops(device_type)`.
  /// @throws c10::ValueError  for a device type without autocast
  static OpPolicy built_in(c10::DeviceType device_type);

  /// Sets the line of one op, "aten::" understood: "mm", "pow.Tensor_Scalar", "mylib::my_op", or
  /// the name of a function wrapped by `autocast_function`.
  /// @throws c10::ValueError  for an op that does not exist (naming the overloads that do); for one
  ///     that writes to its arguments, which must not be cast; and for a policy that needs a
  ///     `dtype` argument the op does not have
  OpPolicy& set(std::string_view op, CastPolicy policy);

  /// @throws c10::ValueError  for an op that does not exist.
  CastPolicy get(std::string_view op) const;

  /// All lines except kUntouched ones, by policy, then by name.
  std::vector<OpPolicyEntry> lines() const;

 private:
  friend std::shared_ptr<const OpPolicyTable> table_of(const OpPolicy& policy);
  OpPolicyTable& own_table();

  std::shared_ptr<OpPolicyTable> table_;
};

}  // namespace mezzo
