#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace mezzo::kernels {

/// A tensor that may be undefined, as operators take it.
inline std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// What computes an operator for one dispatch key. Made when the schema's types are known.
struct OperatorKernel {
  c10::DispatchKey key;
  torch::CppFunction (*make)();
};

/// `kFunction` for `key`: kCompositeExplicitAutograd for all devices below autograd, kAutograd and such in its
/// place, kCompositeImplicitAutograd for a composition of ATen operations.
template <auto* kFunction>
constexpr OperatorKernel kernel(c10::DispatchKey key) {
  using Function = std::remove_pointer_t<decltype(kFunction)>;
  return {key, [] { return torch::CppFunction(c10::CompileTimeFunctionPointer<Function, kFunction>()); }};
}

/// `kFunction` for devices that may have kernels of mezzo's: CPUs, CUDA devices and those from outside of LibTorch.
template <auto* kFunction>
constexpr std::array<OperatorKernel, 3> kernels_of_devices() {
  return {kernel<kFunction>(c10::DispatchKey::CPU), kernel<kFunction>(c10::DispatchKey::CUDA),
          kernel<kFunction>(c10::DispatchKey::PrivateUse1)};
}

/// `kFunction` for all devices that may have fused blocks: CPUs, CUDA devices and external ones. It is registered in
/// place of autograd and below it, and chooses between fused blocks and the specification.
template <auto* kFunction>
constexpr std::array<OperatorKernel, 6> choosing_kernels() {
  using enum c10::DispatchKey;
  return {kernel<kFunction>(CPU),          kernel<kFunction>(AutogradCPU), kernel<kFunction>(CUDA),
          kernel<kFunction>(AutogradCUDA), kernel<kFunction>(PrivateUse1), kernel<kFunction>(AutogradPrivateUse1)};
}

/// For operators that work in place and that autograd should not see.
constexpr OperatorKernel no_autograd() {
  return {c10::DispatchKey::Autograd, [] { return torch::CppFunction::makeFallthrough(); }};
}

/// On the Meta device, where nothing is computed: a result like the first argument.
OperatorKernel meta_like_first();
/// The same, of operators that only write to their arguments.
OperatorKernel meta_in_place();

/// Where mezzo registers its operators. They stay registered until the process ends.
/// @throws c10::Error  as `check_first_copy` and `check_libtorch_version`
torch::Library& library();

/// @throws c10::Error  if mezzo::NAME is registered: a second copy of mezzo is in this process.
void check_first_copy(const std::string& name);

/// An operator mezzo::NAME of LibTorch's dispatcher, which finds the kernel for its arguments' device and autograd
/// state. Policies, cast logs, FiniteTracer, profilers and torch.ops.mezzo see the call. Registered when the program or
/// library is loaded; an error then, such as a second copy of mezzo, is thrown at the first call. Calls are
/// thread-safe.
template <class Signature>
class Operator;

template <class Result, class... Arguments>
class Operator<Result(Arguments...)> {
 public:
  /// @param schema  "name(Tensor x, ...) -> Tensor", without the namespace
  /// @param kernels  each an OperatorKernel, or an array of them
  template <class... Kernels>
  explicit Operator(const std::string& schema, const Kernels&... kernels) {
    try {
      const std::string name = schema.substr(0, schema.find('('));
      torch::Library& registered = library();
      check_first_copy(name);
      registered.def(schema.c_str());
      (add(registered, name, kernels), ...);
      handle_ =
          c10::Dispatcher::singleton().findSchemaOrThrow(("mezzo::" + name).c_str(), "").typed<Result(Arguments...)>();
    } catch (const c10::Error& error) {
      error_ = error.what_without_backtrace();
    }
  }

  Result operator()(Arguments... arguments) const {
    TORCH_CHECK(handle_.has_value(), error_);
    return handle_->call(std::forward<Arguments>(arguments)...);
  }

 private:
  static void add(torch::Library& library, const std::string& name, const OperatorKernel& kernel) {
    library.impl(name.c_str(), torch::dispatch(kernel.key, kernel.make()));
  }
  template <size_t count>
  static void add(torch::Library& library, const std::string& name, const std::array<OperatorKernel, count>& kernels) {
    for (const OperatorKernel& kernel : kernels) {
      add(library, name, kernel);
    }
  }

  std::optional<c10::TypedOperatorHandle<Result(Arguments...)>> handle_;
  std::string error_;
};

}  // namespace mezzo::kernels
