#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "amp/fused_sgd.h"
#include "bindings.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/optim/clip_grad.h"

namespace {

using Parameters = std::vector<at::Tensor>;

mezzo::GradScaler make_scaler(double init_scale,
                              double growth_factor,
                              double backoff_factor,
                              int64_t growth_interval,
                              bool enabled,
                              bool reproduce_pytorch,
                              int64_t hysteresis,
                              int64_t max_consecutive_skips) {
  return mezzo::GradScaler(mezzo::GradScalerOptions()
                               .init_scale(init_scale)
                               .growth_factor(growth_factor)
                               .backoff_factor(backoff_factor)
                               .growth_interval(growth_interval)
                               .enabled(enabled)
                               .reproduce_pytorch(reproduce_pytorch)
                               .hysteresis(hysteresis)
                               .max_consecutive_skips(max_consecutive_skips));
}

bool step(mezzo::GradScaler& scaler, torch::optim::Optimizer& optimizer) { return scaler.step(optimizer).stepped(); }

void unscale(mezzo::GradScaler& scaler, torch::optim::Optimizer& optimizer) { scaler.unscale_(optimizer); }

/// PyTorch's binding makes Python numbers of scalars, but not the reverse.
mezzo::GradScaler::StateDict to_state_dict(const py::dict& state) {
  mezzo::GradScaler::StateDict result;
  for (const auto& [key, value] : state) {
    result[py::cast<std::string>(key)] =
        py::isinstance<py::int_>(value) ? c10::Scalar(value.cast<int64_t>()) : c10::Scalar(value.cast<double>());
  }
  return result;
}

void translate_value_error(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::ValueError& error) {
    PyErr_SetString(PyExc_ValueError, error.what_without_backtrace());
  }
}

}  // namespace

void bind_grad_scaler(py::module_& m) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    if (thrown) {
      translate_value_error(thrown);
    }
  });

  py::class_<torch::optim::Optimizer>(m, "Optimizer").def("step", [](torch::optim::Optimizer& self) { self.step(); });
  py::class_<torch::optim::SGD, torch::optim::Optimizer>(m, "SGD").def(
      py::init([](const Parameters& parameters, double lr, double momentum) {
        return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(lr).momentum(momentum));
      }),
      py::arg("parameters"), py::arg("lr"), py::arg("momentum") = 0.0);
  py::class_<torch::optim::AdamW, torch::optim::Optimizer>(m, "AdamW")
      .def(py::init([](const Parameters& parameters, double lr) {
             return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(lr));
           }),
           py::arg("parameters"), py::arg("lr"));
  py::class_<mezzo::FusedSgd, torch::optim::Optimizer>(m, "FusedSGD")
      .def(py::init<Parameters, double>(), py::arg("parameters"), py::arg("lr"));

  using Scaler = mezzo::GradScaler;
  // A scaler whose ranks agree waits for Gloo's threads, which may want the GIL.
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<Scaler>(m, "GradScaler")
      .def(py::init(&make_scaler), py::arg("init_scale") = 65536.0, py::arg("growth_factor") = 2.0,
           py::arg("backoff_factor") = 0.5, py::arg("growth_interval") = 2000, py::arg("enabled") = true,
           py::arg("reproduce_pytorch") = false, py::arg("hysteresis") = 1, py::arg("max_consecutive_skips") = 0)
      .def("scale", [](Scaler& self, const at::Tensor& output) { return self.scale(output); })
      .def("scale", [](Scaler& self, const Parameters& outputs) { return self.scale(outputs); })
      .def("unscale_", &unscale, NoGil())
      .def("step", &step, NoGil())
      .def("update", [](Scaler& self) { self.update(); })
      .def("update", [](Scaler& self, double new_scale) { self.update(new_scale); })
      .def("update", [](Scaler& self, const at::Tensor& new_scale) { self.update(new_scale); })
      .def("get_scale", &Scaler::get_scale)
      .def("get_growth_factor", &Scaler::get_growth_factor)
      .def("get_backoff_factor", &Scaler::get_backoff_factor)
      .def("get_growth_interval", &Scaler::get_growth_interval)
      .def("set_growth_factor", &Scaler::set_growth_factor)
      .def("set_backoff_factor", &Scaler::set_backoff_factor)
      .def("set_growth_interval", &Scaler::set_growth_interval)
      .def("is_enabled", &Scaler::is_enabled)
      .def("state_dict", &Scaler::state_dict)
      .def("load_state_dict", [](Scaler& self, const py::dict& state) { self.load_state_dict(to_state_dict(state)); });

  m.def(
      "clip_grad_norm_",
      [](const Parameters& parameters, double max_norm, double norm_type) {
        return mezzo::clip_grad_norm_(parameters, max_norm, norm_type);
      },
      py::arg("parameters"), py::arg("max_norm"), py::arg("norm_type") = 2.0);
  m.def("clip_grad_value_",
        [](const Parameters& parameters, double clip_value) { mezzo::clip_grad_value_(parameters, clip_value); });
}
