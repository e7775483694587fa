#include "bindings.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/distributed/group/process_group.h"

using namespace mezzo;
using namespace mezzo::distributed;

void bind_agreement(py::module_& m) {
  m.def(
      "agreeing_grad_scaler",
      [](ProcessGroup& group, double init_scale, int64_t growth_interval, bool reproduce_pytorch,
         bool allow_no_gradients, int64_t max_consecutive_skips) {
        return GradScaler(GradScalerOptions()
                              .init_scale(init_scale)
                              .growth_interval(growth_interval)
                              .reproduce_pytorch(reproduce_pytorch)
                              .allow_no_gradients(allow_no_gradients)
                              .max_consecutive_skips(max_consecutive_skips)
                              .found_inf_all_reduce(all_reduce_found_inf(group)));
      },
      py::keep_alive<0, 1>(), py::arg("group"), py::arg("init_scale") = 65536.0, py::arg("growth_interval") = 2000,
      py::arg("reproduce_pytorch") = false, py::arg("allow_no_gradients") = false,
      py::arg("max_consecutive_skips") = 0);
  m.def(
      "step_with_closure",
      [](GradScaler& scaler, torch::optim::Optimizer& optimizer, const torch::optim::Optimizer::LossClosure& closure) {
        return scaler.step(optimizer, closure).stepped();
      },
      py::call_guard<py::gil_scoped_release>());
}
