#include <torch/optim/sgd.h>

#include "bindings.h"
#include "mezzo/amp/losses.h"
#include "mezzo/amp/overflow_report.h"

namespace {

namespace F = torch::nn::functional;

template <class Options>
void set_reduction(Options& options, const std::string& reduction) {
  if (reduction == "none") {
    options.reduction(torch::kNone);
  } else if (reduction == "sum") {
    options.reduction(torch::kSum);
  } else {
    options.reduction(torch::kMean);
  }
}

void bind_losses(py::module_& m) {
  m.def(
      "binary_cross_entropy",
      [](const at::Tensor& p, const at::Tensor& target, const std::optional<at::Tensor>& weight,
         const std::string& how) {
        F::BinaryCrossEntropyFuncOptions options;
        set_reduction(options, how);
        return mezzo::binary_cross_entropy(p, target, options.weight(weight.value_or(at::Tensor())));
      },
      py::arg("p"), py::arg("target"), py::arg("weight") = py::none(), py::arg("reduction") = "mean");
  m.def("clamped_log", &mezzo::clamped_log, py::arg("x"), py::arg("floor") = 1e-12);
  m.def(
      "cross_entropy",
      [](const at::Tensor& logits, const at::Tensor& target, const std::optional<at::Tensor>& weight,
         const std::string& how, int64_t ignore_index, double smoothing) {
        F::CrossEntropyFuncOptions options;
        set_reduction(options, how);
        options.weight(weight.value_or(at::Tensor())).ignore_index(ignore_index).label_smoothing(smoothing);
        return mezzo::cross_entropy(logits, target, options);
      },
      py::arg("logits"), py::arg("target"), py::arg("weight") = py::none(), py::arg("reduction") = "mean",
      py::arg("ignore_index") = -100, py::arg("label_smoothing") = 0.0);
}

void bind_reports(py::module_& m) {
  py::class_<mezzo::OverflowedGradient>(m, "OverflowedGradient")
      .def_readonly("parameter", &mezzo::OverflowedGradient::parameter)
      .def_readonly("index", &mezzo::OverflowedGradient::index)
      .def_readonly("shape", &mezzo::OverflowedGradient::shape)
      .def_readonly("num_values", &mezzo::OverflowedGradient::num_values)
      .def_readonly("num_inf", &mezzo::OverflowedGradient::num_inf)
      .def_readonly("num_nan", &mezzo::OverflowedGradient::num_nan)
      .def_readonly("largest_finite", &mezzo::OverflowedGradient::largest_finite);
  py::class_<mezzo::OverflowReport>(m, "OverflowReport")
      .def_readonly("optimizer", &mezzo::OverflowReport::optimizer)
      .def_readonly("num_gradients", &mezzo::OverflowReport::num_gradients)
      .def_readonly("overflowed", &mezzo::OverflowReport::overflowed)
      .def("has_nan", &mezzo::OverflowReport::has_nan)
      .def("summary", &mezzo::OverflowReport::summary, py::arg("most") = 4)
      .def("to_string", &mezzo::OverflowReport::to_string);
  m.def("overflow_report", [](const std::vector<at::Tensor>& parameters) {
    torch::optim::SGD optimizer(parameters, /*lr=*/0.1);
    return mezzo::overflow_report(optimizer);
  });
}

}  // namespace

void bind_finite(py::module_& m) {
  bind_losses(m);
  bind_reports(m);
}
