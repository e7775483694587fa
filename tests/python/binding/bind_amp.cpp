#include "bindings.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cast_log.h"
#include "mezzo/amp/op_policy.h"

namespace {

/// A C++ guard as a Python context manager, so that both kinds can nest in one program.
class AutocastContext {
 public:
  AutocastContext(const std::string& device_type,
                  at::ScalarType dtype,
                  bool enabled,
                  std::optional<bool> cache_enabled,
                  std::optional<mezzo::OpPolicy> policy,
                  mezzo::CastLog* log)
      : device_type_(c10::Device(device_type).type()),
        dtype_(dtype),
        options_(
            mezzo::AutocastOptions().enabled(enabled).cache_enabled(cache_enabled).policy(std::move(policy)).log(log)) {
  }
  void enter() { guard_.emplace(device_type_, dtype_, options_); }
  void exit() { guard_.reset(); }

 private:
  c10::DeviceType device_type_;
  at::ScalarType dtype_;
  mezzo::AutocastOptions options_;
  std::optional<mezzo::AutocastGuard> guard_;
};

void bind_op_policy(py::module_& m) {
  using mezzo::OpPolicy;
  py::class_<OpPolicy>(m, "OpPolicy")
      .def(py::init<>())
      .def_static("preset", &OpPolicy::preset)
      .def("set", [](OpPolicy& self, const std::string& op,
                     const std::string& word) { self.set(op, mezzo::parse_cast_policy(word)); })
      .def("get", [](const OpPolicy& self, const std::string& op) { return mezzo::to_string(self.get(op)); })
      .def("lines", [](const OpPolicy& self) {
        std::vector<std::pair<std::string, std::string>> lines;
        for (const auto& [op, policy] : self.lines()) {
          lines.emplace_back(op, mezzo::to_string(policy));
        }
        return lines;
      });
}

void bind_cast_log(py::module_& m) {
  using mezzo::CastLog;
  py::class_<CastLog>(m, "CastLog")
      .def(py::init<>())
      .def("to_table", &CastLog::to_table)
      .def("to_json", &CastLog::to_json)
      .def("clear", &CastLog::clear)
      .def(
          "dry_run",
          [](CastLog& self, const std::string& device_type, at::ScalarType dtype, const std::function<void()>& function,
             const std::optional<mezzo::OpPolicy>& policy) {
            self.dry_run(c10::Device(device_type).type(), dtype, function, policy);
          },
          py::arg("device_type"), py::arg("dtype"), py::arg("function"), py::arg("policy") = py::none());
}

}  // namespace

void bind_amp(py::module_& m) {
  bind_op_policy(m);
  bind_cast_log(m);
  py::class_<AutocastContext>(m, "autocast")
      .def(py::init<std::string, at::ScalarType, bool, std::optional<bool>, std::optional<mezzo::OpPolicy>,
                    mezzo::CastLog*>(),
           py::arg("device_type"), py::arg("dtype"), py::arg("enabled") = true, py::arg("cache_enabled") = py::none(),
           py::arg("policy") = py::none(), py::arg("log") = py::none(), py::keep_alive<1, 7>())
      .def("__enter__", &AutocastContext::enter)
      .def("__exit__", [](AutocastContext& self, const py::args&) { self.exit(); });
  m.def("autocast_cache_size", &mezzo::autocast_cache_size);
}
