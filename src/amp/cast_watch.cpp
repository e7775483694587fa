#include "amp/cast_watch.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <optional>
#include <string>

#include "amp/op_policy_table.h"
#include "amp/policy_thread.h"
#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/op_policy.h"

namespace mezzo {
namespace {

c10::SmallVector<at::Tensor, 4> tensors_in(c10::ArrayRef<c10::IValue> values) {
  c10::SmallVector<at::Tensor, 4> tensors;
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) {
      tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      tensors.append(list.begin(), list.end());
    }
  }
  return tensors;
}

/// What the argument `dtype` says, if there is one and it is given.
std::optional<at::ScalarType> given_dtype(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto index = op.schema().argumentIndexWithName("dtype");
  if (!index || !arguments[*index].isInt()) {
    return std::nullopt;
  }
  return arguments[*index].toScalarType();
}

/// The line that asked for a cast. Where a call does not tell, promotion, mezzo's
/// table of PyTorch's lists does.
CastPolicy line_of(const c10::OperatorHandle& op, c10::DeviceType device_type, at::ScalarType to) {
  const auto table = table_of(OpPolicy::preset(device_type == c10::kCPU ? "cpu" : "cuda"));
  const auto* listed = table->find(op);
  if (listed != nullptr && listed->policy == CastPolicy::kPromote) {
    return CastPolicy::kPromote;
  }
  return to == at::autocast::get_autocast_dtype(device_type) ? CastPolicy::kLowerPrecision : CastPolicy::kFloat32;
}

}  // namespace

WatchedCall::WatchedCall(const c10::OperatorHandle& op,
                         c10::DeviceType device_type,
                         CastLog& log,
                         c10::ArrayRef<c10::IValue> arguments)
    : op_(op),
      device_type_(device_type),
      log_(log),
      tensors_(tensors_in(arguments)),
      has_dtype_(given_dtype(op, arguments).has_value()) {}

CastWatch::CastWatch(PolicyThread& thread, const WatchedCall* call)
    : thread_(thread), outer_(thread.watch), call_(call) {
  thread_.watch = this;
}

CastWatch::~CastWatch() { thread_.watch = outer_; }

void CastWatch::note(c10::ArrayRef<c10::IValue> results) {
  const auto tensors = tensors_in(results);
  made_.append(tensors.begin(), tensors.end());
}

bool CastWatch::is_new(const at::Tensor& tensor) {
  auto* found = std::find_if(made_.begin(), made_.end(), [&](const auto& made) { return made.is_same(tensor); });
  if (found == made_.end()) {
    return false;
  }
  made_.erase(found);
  return true;
}

void CastWatch::record(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const std::string name = c10::toString(call_->op_.operator_name());
  const auto& before = call_->tensors_;
  const auto after = tensors_in(arguments);
  if (before.size() != after.size() || before.empty()) {
    return;  // the kernel did more than cast
  }
  for (size_t i = 0; i < after.size(); ++i) {
    const auto from = before[i].scalar_type(), to = after[i].scalar_type();
    if (from != to) {
      call_->log_.record(name, line_of(call_->op_, call_->device_type_, to), from, to,
                         static_cast<int64_t>(after[i].nbytes()), /*from_cache=*/!is_new(after[i]));
    }
  }
  const auto dtype = given_dtype(op, arguments);
  if (dtype && !call_->has_dtype_ && *dtype != after[0].scalar_type()) {
    const bool is_same_op = op.operator_name() == call_->op_.operator_name();
    call_->log_.record(name, is_same_op ? CastPolicy::kFloat32SetOptDtype : CastPolicy::kFloat32AppendDtype,
                       after[0].scalar_type(), *dtype, /*bytes=*/0, /*from_cache=*/false);
  }
}

}  // namespace mezzo
