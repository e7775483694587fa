// A shared object with a copy of mezzo's registry of operators, of this version but another
// build: see operator_test.cpp.
#include "kernels/libtorch_version.cpp"
#include "kernels/operator.cpp"

namespace {

using Dropout = at::Tensor(const at::Tensor&, double, int64_t, int64_t, int64_t, const std::optional<at::Tensor>&);
const mezzo::kernels::Operator<Dropout> same_op(
    "dropout(Tensor x, float p, int seed, int step, int site, Tensor? step_offset=None) -> Tensor");
const mezzo::kernels::Operator<Dropout> renamed_op(
    "dropout(Tensor x, float q, int seed, int step, int site, Tensor? step_offset=None) -> Tensor");

const char* error_of(const mezzo::kernels::Operator<Dropout>& op) {
  static std::string error;
  error.clear();
  try {
    op(at::ones({4}), 0.5, 1, 2, 3, std::nullopt);
  } catch (const c10::Error& thrown) {
    error = thrown.what_without_backtrace();
  }
  return error.c_str();
}

}  // namespace

/// What calling dropout throws, by the schema that is registered and by another.
extern "C" C10_EXPORT const char* error_of_same() { return error_of(same_op); }
extern "C" C10_EXPORT const char* error_of_renamed() { return error_of(renamed_op); }
