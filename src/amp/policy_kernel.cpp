#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>

#include "amp/policy_region.h"
#include "amp/policy_thread.h"
#include "amp/tensor_caster.h"

namespace mezzo {
namespace {

/// The arguments of one call of one op, on the stack, for the policy to act on.
class CallArguments {
 public:
  CallArguments(torch::jit::Stack& stack, const OpPolicyEntryPoint& entry, const TensorCaster& caster)
      : stack_(stack), entry_(entry), caster_(caster), first_(stack.size() - entry.is_optional.size()) {}

  /// @return the op to call in place of the one that was, if any.
  std::optional<c10::OperatorHandle> apply() {
    switch (entry_.policy) {
      case CastPolicy::kLowerPrecision: cast_all(caster_.low()); break;
      case CastPolicy::kFloat32: cast_all(at::kFloat); break;
      case CastPolicy::kPromote: cast_all(widest()); break;
      case CastPolicy::kFloat32SetOptDtype:
        if (c10::IValue& dtype = stack_[first_ + *entry_.dtype_argument]; dtype.isNone() && first_is_eligible()) {
          caster_.log_conversion(stack_[first_].toTensor());
          dtype = at::kFloat;
        }
        break;
      case CastPolicy::kFloat32AppendDtype: {
        const at::Tensor first = stack_[first_].toTensor();
        if (first_is_eligible()) {
          caster_.log_conversion(first);
        }
        stack_.emplace_back(first_is_eligible() ? at::kFloat : first.scalar_type());
        return entry_.with_dtype;
      }
      case CastPolicy::kBanned: caster_.refuse();
      case CastPolicy::kUntouched: break;
    }
    return std::nullopt;
  }

 private:
  bool first_is_eligible() const { return stack_[first_].isTensor() && caster_.is_eligible(stack_[first_].toTensor()); }

  /// From the last to the first, as in PyTorch's builds. The order of the casts decides in which order autograd sums
  /// the gradients of a tensor that was cast more than once.
  void cast_all(at::ScalarType to) {
    for (size_t i = stack_.size(); i-- > first_;) {
      c10::IValue& value = stack_[i];
      if (value.isTensor()) {
        value = caster_.cast(value.toTensor(), to);
      } else if (value.isTensorList()) {
        auto list = value.toTensorVector();
        for (at::Tensor& tensor : list) {
          tensor = caster_.cast(tensor, to);
        }
        value = std::move(list);
      }
    }
  }

  /// The autocast dtype, or float32 if any argument is; arguments that are optional
  /// have no say, as in PyTorch.
  at::ScalarType widest() const {
    auto widest = caster_.low();
    for (size_t i = 0; i < entry_.is_optional.size(); ++i) {
      const c10::IValue& value = stack_[first_ + i];
      if (entry_.is_optional[i]) {
        continue;
      }
      if (value.isTensor()) {
        widest = caster_.promoted(widest, value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) {
          widest = caster_.promoted(widest, tensor);
        }
      }
    }
    return widest;
  }

  torch::jit::Stack& stack_;
  const OpPolicyEntryPoint& entry_;
  const TensorCaster& caster_;
  const size_t first_;
};

/// Whether any tensor among the arguments satisfies `holds`.
template <class Predicate>
bool any_tensor(at::ArrayRef<c10::IValue> arguments, const Predicate& holds) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
    if (value.isTensor()) {
      return value.toTensor().defined() && holds(value.toTensor());
    }
    if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      return std::any_of(list.begin(), list.end(), holds);
    }
    return false;
  });
}

/// Whether PyTorch, too, would ask autocast: it is enabled, and an argument is
/// on a device of this type.
bool concerns(c10::DeviceType device_type, at::ArrayRef<c10::IValue> arguments) {
  const auto key = autocast_key(device_type);
  return !c10::impl::tls_is_dispatch_key_excluded(key) &&
         any_tensor(arguments, [&](const at::Tensor& tensor) { return tensor.key_set().has(key); });
}

}  // namespace

void call_by_policy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const PolicyThread& thread = *PolicyThread::current();
  auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPolicyKey);
  c10::DispatchKeySet done;  // autocast keys of device types whose tensors were cast: off for inner ops
  auto target = op;
  const size_t num_arguments = op.schema().arguments().size();
  for (const auto device_type : thread.device_types) {
    const PolicyRegion& region = *thread.innermost[static_cast<size_t>(device_type)];
    const auto* entry = region.policy ? region.policy->find(op) : nullptr;
    if (entry == nullptr) {
      continue;  // not governed: the autocast kernel that the op may have is PyTorch's or somebody else's
    }
    below = below.remove(autocast_key(device_type));
    if (entry->policy == CastPolicy::kUntouched || !concerns(device_type, torch::jit::last(*stack, num_arguments))) {
      continue;
    }
    done = done.add(autocast_key(device_type));
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(done.add(kPolicyKey));
    const TensorCaster caster(device_type, entry->op, entry->policy, region.log);
    target = CallArguments(*stack, *entry, caster).apply().value_or(target);
  }
  if (done == thread.autocast) {
    done = done.add(kPolicyKey);  // nothing is left to decide
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(done);
  target.redispatchBoxed(below, stack);
}

}  // namespace mezzo
