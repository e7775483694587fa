#include "simulated/arguments.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "simulated/streams.h"

namespace mezzo::simulated {
namespace {

/// Of a list of tensors, which may be optional ones.
template <class List>
c10::IValue changed_list(const List& list, const c10::Argument& argument, const ChangeTensor& change) {
  List changed;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<at::Tensor> tensor = list.get(i);
    if (tensor && tensor->defined()) {
      changed.push_back(change(*tensor, argument));
    } else {
      changed.push_back(list.get(i));
    }
  }
  return changed;
}

}  // namespace

void change_tensors(const std::vector<c10::Argument>& arguments,
                    torch::jit::Stack& values,
                    const ChangeTensor& change) {
  for (size_t i = 0; i < values.size(); ++i) {
    c10::IValue& value = values[i];
    if (value.isTensor() && value.toTensor().defined()) {
      value = change(value.toTensor(), arguments[i]);
    } else if (value.isTensorList()) {
      value = changed_list(value.toTensorList(), arguments[i], change);
    } else if (value.isOptionalTensorList()) {
      value = changed_list(value.toOptionalTensorList(), arguments[i], change);
    }
  }
}

Shapes infer_shapes(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const at::DisableRecordFunctionGuard no_record;
  const c10::impl::ForceDispatchKeyGuard no_modes(
      c10::default_included_set,
      c10::default_excluded_set | c10::autocast_dispatch_keyset | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  const bool has_meta = op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
  const auto device = has_meta ? at::kMeta : at::kCPU;
  Shapes shapes{arguments, {}};
  change_tensors(op.schema().arguments(), shapes.arguments, [&](const at::Tensor& tensor, const c10::Argument&) {
    if (tensor.device().type() != kType) {
      return tensor;
    }
    auto empty = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
    return has_meta ? empty : empty.zero_();
  });
  for (c10::IValue& value : shapes.arguments) {
    if (value.isGenerator()) {
      value = at::detail::createCPUGenerator();
    }
  }
  shapes.results = shapes.arguments;
  op.redispatchBoxed(c10::DispatchKeySet(has_meta ? c10::DispatchKey::Meta : c10::DispatchKey::CPU), &shapes.results);
  return shapes;
}

}  // namespace mezzo::simulated
