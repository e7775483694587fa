#include "bindings.h"
#include "mezzo/amp/cpu_half_compute.h"

namespace {

/// A C++ scope as a Python context manager.
class HalfComputeContext {
 public:
  void enter() { compute_.emplace(); }
  void exit() { compute_.reset(); }

 private:
  std::optional<mezzo::CpuHalfCompute> compute_;
};

}  // namespace

void bind_half_compute(py::module_& m) {
  py::class_<HalfComputeContext>(m, "CpuHalfCompute")
      .def(py::init<>())
      .def("__enter__", &HalfComputeContext::enter)
      .def("__exit__", [](HalfComputeContext& self, const py::args&) { self.exit(); });
}
