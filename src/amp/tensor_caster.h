#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <string>

#include "mezzo/amp/op_lists.h"

namespace mezzo {

class CastLog;

/// Casts the tensor arguments of one call of one op, or function, on one device type, and writes to
/// a log, if there is one. Autocast must be off for the casts themselves.
class TensorCaster {
 public:
  /// @param op  in full, for the log and messages; must outlive this.
  /// @param log  may be null.
  TensorCaster(c10::DeviceType device_type, const std::string& op, CastPolicy policy, CastLog* log);

  /// The autocast dtype.
  at::ScalarType low() const { return low_; }

  /// Whether casts apply to `tensor`: on the device type, floating, not float64.
  bool is_eligible(const at::Tensor& tensor) const;

  /// `tensor` in dtype `to`; itself, if it is not eligible.
  at::Tensor convert(const at::Tensor& tensor, at::ScalarType to) const;

  /// The same; casts of parameters are kept in the thread's CastCache under a policy, else in
  /// PyTorch's.
  at::Tensor cast(const at::Tensor& tensor, at::ScalarType to) const;

  /// kPromote: the dtype for all, `so_far` (low() to begin with) before this one was looked at.
  at::ScalarType promoted(at::ScalarType so_far, const at::Tensor& tensor) const;

  /// kFloat32SetOptDtype and the like: the op converts `tensor` to float32 as it
  /// reads, nothing is copied.
  void log_conversion(const at::Tensor& tensor) const;

  /// kBanned.
  [[noreturn]] void refuse() const;

 private:
  at::Tensor cast_as_pytorch(const at::Tensor& tensor, at::ScalarType to) const;
  void log(at::ScalarType from, const at::Tensor& result, bool from_cache) const;

  c10::DeviceType device_type_;
  const std::string& op_;
  CastPolicy policy_;
  CastLog* log_;
  at::ScalarType low_;
};

}  // namespace mezzo
