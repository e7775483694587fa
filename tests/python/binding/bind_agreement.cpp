#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "amp/fused_sgd.h"
#include "bindings.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/distributed/group/process_group.h"

using namespace mezzo;
using namespace mezzo::distributed;

namespace {

using Parameters = std::vector<at::Tensor>;
// A scaler whose ranks agree waits for Gloo's threads, which may want the GIL.
using NoGil = py::call_guard<py::gil_scoped_release>;

void bind_optimizers(py::module_& m) {
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
  py::class_<FusedSgd, torch::optim::Optimizer>(m, "FusedSGD")
      .def(py::init<Parameters, double>(), py::arg("parameters"), py::arg("lr"));
}

}  // namespace

void bind_agreement(py::module_& m) {
  bind_optimizers(m);
  py::class_<GradScaler>(m, "GradScaler")
      .def("scale", [](GradScaler& self, const at::Tensor& output) { return self.scale(output); })
      .def(
          "unscale_", [](GradScaler& self, torch::optim::Optimizer& optimizer) { self.unscale_(optimizer); }, NoGil())
      .def(
          "step", [](GradScaler& self, torch::optim::Optimizer& optimizer) { return self.step(optimizer).stepped(); },
          NoGil())
      .def(
          "step_with_closure",
          [](GradScaler& self, torch::optim::Optimizer& optimizer,
             const torch::optim::Optimizer::LossClosure& closure) { return self.step(optimizer, closure).stepped(); },
          NoGil())
      .def("update", [](GradScaler& self) { self.update(); })
      .def("update", [](GradScaler& self, double new_scale) { self.update(new_scale); })
      .def("get_scale", &GradScaler::get_scale)
      .def("state_dict", &GradScaler::state_dict);
  m.def(
      "agreeing_grad_scaler",
      [](ProcessGroup* group, double init_scale, int64_t growth_interval, bool reproduce_pytorch,
         bool allow_no_gradients, int64_t max_consecutive_skips) {
        auto options = GradScalerOptions()
                           .init_scale(init_scale)
                           .growth_interval(growth_interval)
                           .reproduce_pytorch(reproduce_pytorch)
                           .allow_no_gradients(allow_no_gradients)
                           .max_consecutive_skips(max_consecutive_skips);
        if (group != nullptr) {
          options.found_inf_all_reduce(all_reduce_found_inf(*group));
        }
        return GradScaler(std::move(options));
      },
      py::keep_alive<0, 1>(), py::arg("group"), py::arg("init_scale") = 65536.0, py::arg("growth_interval") = 2000,
      py::arg("reproduce_pytorch") = false, py::arg("allow_no_gradients") = false,
      py::arg("max_consecutive_skips") = 0);
}
