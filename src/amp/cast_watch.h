#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DeviceType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "mezzo/amp/op_lists.h"

namespace mezzo {

class CastLog;
struct PolicyThread;

/// A call on its way into the built-in autocast kernel. That kernel calls the op again, or another
/// overload of it, with arguments cast or a dtype given; the difference goes to a log.
class WatchedCall {
 public:
  WatchedCall(const c10::OperatorHandle& op,
              c10::DeviceType device_type,
              CastLog& log,
              c10::ArrayRef<c10::IValue> arguments);

  c10::DeviceType device_type() const { return device_type_; }

  /// Whether `op` is what the kernel calls in the end.
  bool ends_in(const c10::OperatorHandle& op) const { return op.schema().name() == op_.schema().name(); }

 private:
  friend class CastWatch;

  const c10::OperatorHandle& op_;
  c10::DeviceType device_type_;
  CastLog& log_;
  c10::SmallVector<at::Tensor, 4> tensors_;
  bool has_dtype_;
};

/// While it lives, hears what ops on this thread return: so that of PyTorch's casts it can tell new
/// ones from those that PyTorch had kept.
class CastWatch {
 public:
  /// @param call  null: nothing is recorded.
  explicit CastWatch(PolicyThread& thread, const WatchedCall* call = nullptr);
  ~CastWatch();
  CastWatch(const CastWatch&) = delete;
  CastWatch& operator=(const CastWatch&) = delete;

  const WatchedCall* call() const { return call_; }

  void note(c10::ArrayRef<c10::IValue> results);

  /// Whether `tensor` was made meanwhile. True once: who meets it again
  /// has it from PyTorch's cache.
  bool is_new(const at::Tensor& tensor);

  /// Writes to the log what was cast on the way from the call to this one.
  void record(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

 private:
  PolicyThread& thread_;
  CastWatch* outer_;
  const WatchedCall* call_;
  c10::SmallVector<at::Tensor, 4> made_;
};

}  // namespace mezzo
