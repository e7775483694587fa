#include "kernels/operator.h"

#include <ATen/core/stack.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include "mezzo/version.h"

namespace mezzo::kernels {
namespace {

void like_first(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t arguments = op.schema().arguments().size();
  const auto first = torch::jit::peek(*stack, 0, arguments).toTensor();
  torch::jit::drop(*stack, arguments);
  stack->emplace_back(at::empty_like(first, at::MemoryFormat::Contiguous));
}

void in_place(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

}  // namespace

OperatorKernel meta_like_first() {
  return {c10::DispatchKey::Meta, [] { return torch::CppFunction::makeFromBoxedFunction<&like_first>(); }};
}

OperatorKernel meta_in_place() {
  return {c10::DispatchKey::Meta, [] { return torch::CppFunction::makeFromBoxedFunction<&in_place>(); }};
}

void check_first_copy(const std::string& name) {
  TORCH_CHECK(!c10::Dispatcher::singleton().findSchema({"mezzo::" + name, ""}),
              "mezzo: two copies of mezzo are in this "
              "process, and this one, version ",
              MEZZO_VERSION, ", was loaded second (mezzo::", name,
              " is registered already). Link all users of mezzo in a process with the same shared library.");
}

torch::Library& library() {
  check_libtorch_version();
  static auto& made = *[] {
    check_first_copy("version");
    auto* fragment = new torch::Library(torch::Library::FRAGMENT, "mezzo", std::nullopt, __FILE__, __LINE__);
    fragment->def("version() -> str", [] { return std::string(MEZZO_VERSION); });
    return fragment;
  }();
  return made;
}

}  // namespace mezzo::kernels
