#include "kernels/operator.h"

#include <ATen/core/stack.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "mezzo/version.h"

namespace mezzo::kernels {
namespace {

std::string version() { return MEZZO_VERSION; }

torch::Library& own_library() {
  static auto& library = *new torch::Library(torch::Library::FRAGMENT, "mezzo", std::nullopt, __FILE__, __LINE__);
  return library;
}

/// The version of the mezzo that registers this process's operators.
std::string registered_version() {
  auto& dispatcher = c10::Dispatcher::singleton();
  if (!dispatcher.findSchema({"mezzo::version", ""})) {
    own_library().def("version() -> str", &version);
  }
  return dispatcher.findSchemaOrThrow("mezzo::version", "").typed<std::string()>().call();
}

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

torch::Library* library_for(const std::string& schema) {
  constexpr const char* kOneHome = ", and operators have one home; link both of their users with the same mezzo";
  check_libtorch_version();
  const auto registered = registered_version();
  TORCH_CHECK(registered == version(), "mezzo: two versions are in this process, ", registered, " and ", version(),
              kOneHome);
  const auto own = torch::jit::parseSchema("mezzo::" + schema);
  const auto other = c10::Dispatcher::singleton().findSchema(own.operator_name());
  TORCH_CHECK(!other || other->schema() == own, "mezzo: two builds of version ", registered,
              " are in this process, with ", other->schema(), " and ", own, kOneHome);
  return other ? nullptr : &own_library();
}

}  // namespace mezzo::kernels
