// A second copy of mezzo's registry of operators and of its op policies: see operator_test.cpp.
#include "amp/policy_thread.cpp"
#include "kernels/operator.cpp"

namespace mezzo {
// The policies' kernel is never called here.
void call_by_policy(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet /*keys*/, torch::jit::Stack* /*stack*/) {}
}  // namespace mezzo

namespace {

int64_t twice(int64_t x) { return 2 * x; }
const mezzo::kernels::Operator<decltype(twice)> twice_op(
    "twice(int x) -> int", mezzo::kernels::kernel<&twice>(c10::DispatchKey::CompositeImplicitAutograd));

template <class Function>
const char* error_of(std::string& error, const Function& function) {
  try {
    function();
  } catch (const c10::Error& thrown) {
    error = thrown.what_without_backtrace();
  }
  return error.c_str();
}

}  // namespace

/// The error of the first call of an operator of this copy.
extern "C" C10_EXPORT const char* error_of_call() {
  static std::string error;
  return error_of(error, [] { twice_op(1); });
}

/// The error of the first region with a policy or a log of this copy.
extern "C" C10_EXPORT const char* error_of_region() {
  static std::string error;
  return error_of(error, [] { mezzo::PolicyThread::ready(); });
}
