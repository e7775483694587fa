#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "simulated/arguments.h"
#include "simulated/generator.h"
#include "simulated/launch.h"
#include "simulated/report.h"

/// LibTorch's operators on a device: each is a kernel that calls the operator's CPU kernel on the
/// device's memory. The result has its sizes at once and its values later.
namespace mezzo::simulated {
namespace {

using torch::jit::Stack;

/// The one device of all tensors. Numbers may come from the CPU, and indices, as on CUDA.
c10::Device device_of_call(const c10::OperatorHandle& op, const Stack& arguments) {
  std::optional<c10::Device> device;
  Stack looked_at = arguments;
  change_tensors(op.schema().arguments(), looked_at, [&](const at::Tensor& tensor, const c10::Argument&) {
    if (tensor.device().type() == kType) {
      TORCH_CHECK(!device || *device == tensor.device(), "simulated device: ", op.operator_name(),
                  " got tensors on two devices, ", *device, " and ", tensor.device());
      device = tensor.device();
    }
    return tensor;
  });
  TORCH_CHECK(device, "simulated device: ", op.operator_name(), " got no tensor of its, and is not known to it");
  return *device;
}

/// A tensor of the CPU as it is now.
at::Tensor taken_along(const c10::OperatorHandle& op, const at::Tensor& tensor, const c10::Argument& argument) {
  const bool is_number = tensor.dim() == 0, is_index = argument.name() == "indices";
  TORCH_CHECK(tensor.is_cpu() && (is_number || is_index) && !is_written(argument), "simulated device: argument ",
              argument.name(), " of ", op.operator_name(), " is on ", tensor.device(),
              ", expected all tensors to be on the same device");
  if (!is_number) {
    note_host_sync("indices from pageable memory", &Queue::of(current_stream(current_device())));
  }
  return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : tensor.clone();
}

bool is_tensors(const c10::Argument& value) {
  const auto type = value.type();
  return type->isSubtypeOf(*c10::TensorType::get()) || type->isSubtypeOf(*c10::ListType::ofTensors());
}

/// Whether there is a boolean index, which selects as many values as the device finds.
bool indexes_by_mask(const c10::OperatorHandle& op, const Stack& arguments) {
  bool found = false;
  Stack looked_at = arguments;
  change_tensors(op.schema().arguments(), looked_at, [&](const at::Tensor& tensor, const c10::Argument& argument) {
    found = found || (argument.name() == "indices" && at::isIntegralType(tensor.scalar_type(), true) &&
                      tensor.element_size() == 1);
    return tensor;
  });
  return found;
}

/// Whether the host needs a result of the device to know the operator's results.
bool waits(const c10::OperatorHandle& op, const Stack& arguments) {
  const auto& returns = op.schema().returns();
  const auto& name = op.schema().name();
  if (name == "aten::index" || name == "aten::_index_put_impl_") {
    return indexes_by_mask(op, arguments);
  }
  return !std::all_of(returns.begin(), returns.end(), is_tensors) || op.hasTag(at::Tag::data_dependent_output) ||
         op.hasTag(at::Tag::dynamic_output_shape);
}

at::Tensor empty_like(const at::Tensor& tensor, c10::Device device) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
}

/// An operator that writes to arguments of other sizes than its results' makes them
/// larger, if they are empty.
void resize_written(const c10::OperatorHandle& op, const Stack& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = op.schema().arguments()[i];
    if (argument.is_out() && arguments[i].isTensor() && arguments[i].toTensor().numel() == 0) {
      const auto shapes = infer_shapes(op, arguments);
      const auto& wanted = shapes.arguments[i].toTensor();
      if (wanted.sizes() != arguments[i].toTensor().sizes()) {
        arguments[i].toTensor().resize_(wanted.sizes());
      }
    }
  }
}

/// Whether result `i` is an argument that the operator writes to, and not a new tensor.
bool is_argument(const c10::OperatorHandle& op, size_t i) { return op.schema().returns()[i].alias_info() != nullptr; }

/// Puts those arguments among the results.
void add_arguments(const c10::OperatorHandle& op, const Stack& arguments, Stack& results) {
  const auto& all = op.schema().arguments();
  for (size_t i = 0; i < results.size(); ++i) {
    if (is_argument(op, i)) {
      const auto* alias = op.schema().returns()[i].alias_info();
      TORCH_CHECK(alias->isWrite(), "simulated device: ", op.operator_name(),
                  " returns a view, and is not known to it");
      const auto same = std::find_if(all.begin(), all.end(), [&](const auto& argument) {
        return argument.alias_info() != nullptr && *argument.alias_info() == *alias;
      });
      results[i] = arguments.at(static_cast<size_t>(same - all.begin()));
    }
  }
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  return value.isTensor()       ? std::vector{value.toTensor()}
         : value.isTensorList() ? value.toTensorVector()
                                : std::vector<at::Tensor>();
}

/// The operator's arguments as its kernel sees them.
Stack seen_by(Launch& launch, const c10::OperatorHandle& op, const Stack& arguments) {
  Stack seen = arguments;
  change_tensors(op.schema().arguments(), seen, [&](const at::Tensor& tensor, const c10::Argument& argument) {
    if (tensor.device().type() != kType) {
      return taken_along(op, tensor, argument);
    }
    return is_written(argument) ? launch.write(tensor) : launch.read(tensor);
  });
  bool has_generator = false;
  for (size_t i = 0; i < seen.size(); ++i) {
    const auto& argument = op.schema().arguments()[i];
    if (argument.name() == "generator") {
      seen[i] = for_one_kernel(seen[i].toOptional<at::Generator>());
      has_generator = true;
    } else if (argument.type()->kind() == c10::TypeKind::DeviceObjType && seen[i].isDevice()) {
      seen[i] = c10::Device(c10::kCPU);
    }
  }
  TORCH_CHECK(has_generator || !op.hasTag(at::Tag::nondeterministic_seeded), "simulated device: ", op.operator_name(),
              " draws from the CPU's generator");
  return seen;
}

/// Copies a kernel's returned values to its results.
void store(const c10::OperatorHandle& op, const Stack& returned, const Stack& results) {
  for (size_t i = 0; i < returned.size(); ++i) {
    const auto from = tensors_of(returned[i]), to = tensors_of(results[i]);
    for (size_t j = 0; j < from.size() && !is_argument(op, i); ++j) {
      if (from[j].defined()) {
        to[j].copy_(from[j]);
      }
    }
  }
}

/// The operator's results, to be computed when the stream gets there.
Stack queued(const c10::OperatorHandle& op, const Stack& arguments, c10::Device device) {
  Launch launch(c10::toString(op.operator_name()));
  const auto& returns = op.schema().returns();
  Stack results(returns.size());
  Stack seen_results(returns.size());
  if (!std::all_of(returns.begin(), returns.end(), [](const auto& value) { return value.alias_info() != nullptr; })) {
    results = infer_shapes(op, arguments).results;
    change_tensors(returns, results, [&](const at::Tensor& tensor, const c10::Argument& result) {
      return is_written(result) ? tensor : empty_like(tensor, device);
    });
    seen_results = results;
    change_tensors(returns, seen_results, [&](const at::Tensor& tensor, const c10::Argument& result) {
      return is_written(result) ? tensor : launch.write(tensor);
    });
  }
  add_arguments(op, arguments, results);
  const Stack seen = seen_by(launch, op, arguments);
  launch.count_as(traffic_of(op, arguments, results));
  // LibTorch 2.11's boxed kernels of several out= arguments, such as frexp's, drop the stack's
  // values before they return references to them. `seen` holds the values.
  launch.run([op, seen, seen_results]() mutable {
    Stack stack = seen;
    op.callBoxed(stack);
    store(op, stack, seen_results);
  });
  return results;
}

/// The operator's results, after a wait of the host.
Stack waited_for(const c10::OperatorHandle& op, const Stack& arguments, c10::Device device) {
  Launch launch(c10::toString(op.operator_name()));
  auto results = seen_by(launch, op, arguments);
  launch.run_and_wait([&] { op.callBoxed(results); });
  Launch giving(launch.kernel());
  change_tensors(op.schema().returns(), results, [&](const at::Tensor& tensor, const c10::Argument& value) {
    if (is_written(value)) {
      return tensor;
    }
    const auto result = empty_like(tensor, device);
    giving.run([seen = giving.write(result), tensor] { seen.copy_(tensor); });
    return result;
  });
  add_arguments(op, arguments, results);
  return results;
}

void call(const c10::OperatorHandle& op, Stack* stack) {
  const Stack arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  const auto device = device_of_call(op, arguments);
  const c10::DeviceGuard guard(device);
  resize_written(op, arguments);
  for (auto& result : waits(op, arguments) ? waited_for(op, arguments, device) : queued(op, arguments, device)) {
    stack->push_back(std::move(result));
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&call>()); }

/// LibTorch has composites for backends that bring kernels of the out= form alone. CUDA's are
/// separate kernels, which observers see as one op.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (op && op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&call>());
    }
  }
}

}  // namespace
}  // namespace mezzo::simulated
