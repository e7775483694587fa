#include "amp/policy_region.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "amp/cast_cache.h"
#include "amp/tensor_caster.h"
#include "mezzo/amp/autocast_guard.h"

namespace mezzo {
namespace {

/// Above the autocast keys of all devices, and used by nothing in LibTorch but a test of its own.
constexpr auto kPolicyKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

/// The regions of one thread.
struct Regions {
  std::array<const PolicyRegion*, c10::COMPILE_TIME_MAX_DEVICE_TYPES> innermost{};  // by device type
  c10::SmallVector<c10::DeviceType, 2> device_types;                                // those that have one
  c10::DispatchKeySet autocast;                                                     // their autocast keys
};

thread_local Regions regions;

c10::DispatchKey autocast_key(c10::DeviceType device_type) {
  return at::autocast::get_autocast_dispatch_key_from_device_type(device_type);
}

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

  /// From the last to the first, as PyTorch's builds do: the order of the casts decides in which order autograd sums
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

  /// The autocast dtype, or float32 if any argument is; arguments that are optional have no say, as in PyTorch.
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

/// Whether PyTorch, too, would ask autocast: it is enabled, and an argument is on a device of this type.
bool concerns(c10::DeviceType device_type, at::ArrayRef<c10::IValue> arguments) {
  const auto key = autocast_key(device_type);
  return !c10::impl::tls_is_dispatch_key_excluded(key) &&
         any_tensor(arguments, [&](const at::Tensor& tensor) { return tensor.key_set().has(key); });
}

/// The one kernel of kPolicyKey: called for every op while this thread has a region.
void call_by_policy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPolicyKey);
  c10::DispatchKeySet done;  // autocast keys of device types whose tensors were cast: off for what the op is made of
  auto target = op;
  const size_t num_arguments = op.schema().arguments().size();
  for (const auto device_type : regions.device_types) {
    const PolicyRegion& region = *PolicyRegion::current(device_type);
    const auto* entry = region.policy->find(op);
    if (entry == nullptr) {
      continue;  // not governed: an autocast kernel that the op may have is somebody else's
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
  if (done.empty()) {
    op.redispatchBoxed(below, stack);
    return;
  }
  if (done == regions.autocast) {
    done = done.add(kPolicyKey);  // nothing is left to decide
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(done);
  target.redispatchBoxed(below, stack);
}

void register_kernel_once() {
  static torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "_", kPolicyKey, __FILE__, __LINE__);
    made.fallback(torch::CppFunction::makeFromBoxedFunction<&call_by_policy>());
    return made;
  }();
}

}  // namespace

const PolicyRegion* PolicyRegion::current(c10::DeviceType device_type) {
  return regions.innermost[static_cast<size_t>(device_type)];
}

std::vector<c10::DeviceType> PolicyRegion::open_device_types() {
  return {regions.device_types.begin(), regions.device_types.end()};
}

PolicyRegionGuard::PolicyRegionGuard(c10::DeviceType device_type, PolicyRegion region)
    : device_type_(device_type), region_(std::move(region)), outer_(PolicyRegion::current(device_type)) {
  register_kernel_once();
  regions.innermost[static_cast<size_t>(device_type_)] = &region_;
  if (outer_ == nullptr) {
    regions.device_types.push_back(device_type_);
    regions.autocast = regions.autocast.add(autocast_key(device_type_));
    c10::impl::tls_set_dispatch_key_included(kPolicyKey, true);
  }
}

PolicyRegionGuard::~PolicyRegionGuard() {
  regions.innermost[static_cast<size_t>(device_type_)] = outer_;
  if (outer_ == nullptr) {
    regions.device_types.pop_back();  // opened last
    regions.autocast = regions.autocast.remove(autocast_key(device_type_));
    if (regions.device_types.empty()) {
      c10::impl::tls_set_dispatch_key_included(kPolicyKey, false);
      CastCache::of_this_thread().clear();
    }
  }
}

size_t autocast_cache_size() { return CastCache::of_this_thread().size(); }

}  // namespace mezzo
