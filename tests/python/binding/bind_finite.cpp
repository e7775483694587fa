#include <torch/csrc/autograd/python_variable.h>
#include <torch/optim/sgd.h>

#include "amp/fused_sgd.h"
#include "bindings.h"
#include "mezzo/amp/finite_tracer.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/losses.h"
#include "mezzo/amp/module_scope.h"
#include "mezzo/amp/overflow_report.h"
#include "mezzo/amp/scale_advice.h"

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
  m.def("overflow_report", &mezzo::overflow_report);

  py::class_<mezzo::GradientExponents>(m, "GradientExponents")
      .def_readonly("name", &mezzo::GradientExponents::name)
      .def_readonly("counts", &mezzo::GradientExponents::counts)
      .def_readonly("zeros", &mezzo::GradientExponents::zeros)
      .def_readonly("non_finite", &mezzo::GradientExponents::non_finite)
      .def_readonly("largest", &mezzo::GradientExponents::largest)
      .def("share_lost", &mezzo::GradientExponents::share_lost)
      .def("share_subnormal", &mezzo::GradientExponents::share_subnormal)
      .def("headroom", &mezzo::GradientExponents::headroom);
  m.def(
      "count_gradient_exponents",
      [](const std::vector<std::pair<std::string, std::vector<at::Tensor>>>& groups, double scale) {
        std::vector<mezzo::NamedGradients> named;
        for (const auto& [name, gradients] : groups) {
          named.push_back({name, gradients});
        }
        return mezzo::count_gradient_exponents(named, scale);
      },
      py::arg("groups"), py::arg("scale") = 1.0);
  py::class_<mezzo::ScaleAdvice>(m, "ScaleAdvice")
      .def_readonly("recommended_scale", &mezzo::ScaleAdvice::recommended_scale)
      .def_readonly("needs_scale", &mezzo::ScaleAdvice::needs_scale)
      .def("objection", &mezzo::ScaleAdvice::objection)
      .def("__str__", &mezzo::ScaleAdvice::to_string);
  m.def("advise_scale", &mezzo::advise_scale);
}

/// A Python context manager around a C++ scope.
template <class Scope>
class Held {
 public:
  explicit Held(std::function<std::unique_ptr<Scope>()> make) : make_(std::move(make)) {}
  void enter() { scope_ = make_(); }
  void exit() { scope_.reset(); }
  Scope& scope() { return *scope_; }

 private:
  std::function<std::unique_ptr<Scope>()> make_;
  std::unique_ptr<Scope> scope_;
};

void bind_tracer(py::module_& m) {
  using mezzo::FiniteTracer;
  using mezzo::NonFiniteOp;
  py::class_<mezzo::TracedTensor>(m, "TracedTensor")
      .def_readonly("name", &mezzo::TracedTensor::name)
      .def_readonly("shape", &mezzo::TracedTensor::shape)
      .def_property_readonly("dtype", [](const mezzo::TracedTensor& self) { return toString(self.dtype); })
      .def_readonly("min", &mezzo::TracedTensor::min)
      .def_readonly("max", &mezzo::TracedTensor::max)
      .def_readonly("num_inf", &mezzo::TracedTensor::num_inf)
      .def_readonly("num_minus_inf", &mezzo::TracedTensor::num_minus_inf)
      .def_readonly("num_nan", &mezzo::TracedTensor::num_nan);
  py::class_<NonFiniteOp>(m, "NonFiniteOp")
      .def_readonly("produced_here", &NonFiniteOp::produced_here)
      .def_readonly("op", &NonFiniteOp::op)
      .def_readonly("in_backward", &NonFiniteOp::in_backward)
      .def_readonly("module", &NonFiniteOp::module)
      .def_readonly("backward_node", &NonFiniteOp::backward_node)
      .def_readonly("forward_op", &NonFiniteOp::forward_op)
      .def_readonly("source", &NonFiniteOp::source)
      .def_readonly("inputs", &NonFiniteOp::inputs)
      .def_readonly("outputs", &NonFiniteOp::outputs)
      .def("__str__", &NonFiniteOp::to_string);
  using HeldTracer = Held<FiniteTracer>;
  py::class_<HeldTracer>(m, "FiniteTracer")
      .def(py::init(
               [](const std::vector<std::string>& ignore_ops, const std::function<void(const NonFiniteOp&)>& on_first) {
                 mezzo::FiniteTracerOptions options;
                 options.ignore_ops(ignore_ops).on_first(on_first);
                 return HeldTracer([options] { return std::make_unique<FiniteTracer>(options); });
               }),
           py::arg("ignore_ops") = std::vector<std::string>{}, py::arg("on_first") = nullptr)
      .def(
          "__enter__",
          [](HeldTracer& self) -> HeldTracer& {
            self.enter();
            return self;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](HeldTracer& self, const py::args&) { self.exit(); })
      .def_property_readonly("first", [](HeldTracer& self) { return self.scope().first(); })
      .def("check", [](HeldTracer& self) { self.scope().check(); });
  using HeldScope = Held<mezzo::ModuleScope>;
  py::class_<HeldScope, std::shared_ptr<HeldScope>>(m, "ModuleScope")
      .def(py::init([](const std::string& name) {
        const auto kept = std::make_shared<std::string>(name);
        return std::make_shared<HeldScope>([kept] { return std::make_unique<mezzo::ModuleScope>(*kept); });
      }))
      .def("__enter__", &HeldScope::enter)
      .def("__exit__", [](HeldScope& self, const py::args&) { self.exit(); });
}

}  // namespace

void bind_finite(py::module_& m) {
  bind_losses(m);
  bind_reports(m);
  bind_tracer(m);
}
