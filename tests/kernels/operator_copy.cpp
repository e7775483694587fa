// A shared object with a copy of mezzo's registry of operators, of another
// version: see operator_test.cpp.
#include "mezzo/version.h"
#undef MEZZO_VERSION
#define MEZZO_VERSION "another version"
#include "kernels/libtorch_version.cpp"
#include "kernels/operator.cpp"

namespace {

int64_t twice(int64_t x) { return 2 * x; }
const mezzo::kernels::Operator<decltype(twice)> twice_op(
    "twice(int x) -> int", mezzo::kernels::kernel<&twice>(c10::DispatchKey::CompositeImplicitAutograd));

}  // namespace

/// What calling an operator of this copy throws; nothing is registered.
extern "C" C10_EXPORT const char* error_of_call() {
  static std::string error;
  try {
    twice_op(1);
  } catch (const c10::Error& thrown) {
    error = thrown.what_without_backtrace();
  }
  return error.c_str();
}
