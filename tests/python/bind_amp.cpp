#include "bindings.h"
#include "mezzo/amp/autocast_guard.h"

namespace {

/// A C++ guard as a Python context manager, so that both kinds can nest in one program.
class AutocastContext {
 public:
  AutocastContext(const std::string& device_type, at::ScalarType dtype, bool enabled, std::optional<bool> cache_enabled)
      : device_type_(c10::Device(device_type).type()),
        dtype_(dtype),
        enabled_(enabled),
        cache_enabled_(cache_enabled) {}
  void enter() { guard_.emplace(device_type_, dtype_, enabled_, cache_enabled_); }
  void exit() { guard_.reset(); }

 private:
  c10::DeviceType device_type_;
  at::ScalarType dtype_;
  bool enabled_;
  std::optional<bool> cache_enabled_;
  std::optional<mezzo::AutocastGuard> guard_;
};

}  // namespace

void bind_amp(py::module_& m) {
  py::class_<AutocastContext>(m, "autocast")
      .def(py::init<std::string, at::ScalarType, bool, std::optional<bool>>(), py::arg("device_type"), py::arg("dtype"),
           py::arg("enabled") = true, py::arg("cache_enabled") = py::none())
      .def("__enter__", &AutocastContext::enter)
      .def("__exit__", [](AutocastContext& self, const py::args&) { self.exit(); });
}
