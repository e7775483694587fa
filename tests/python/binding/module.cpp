#include <c10/util/Exception.h>

#include "bindings.h"

namespace {

void translate_value_error(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
  }
}

}  // namespace

PYBIND11_MODULE(_mezzo, m) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    if (thrown) {
      translate_value_error(thrown);
    }
  });
  bind_agreement(m);
  bind_custom_function(m);
  bind_ddp(m);
  bind_distributed(m);
  bind_files(m);
  bind_finite(m);
  bind_half_compute(m);
  bind_known_fields(m);
  bind_memory(m);
  bind_model(m);
  bind_optim(m);
  bind_recipes(m);
  bind_report(m);
  bind_sampler(m);
  bind_zero(m);
}
