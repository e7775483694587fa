// The test-only Python module `_mezzo`: one bind_*.cpp per layer.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

void bind_agreement(py::module_& m);
void bind_custom_function(py::module_& m);
void bind_ddp(py::module_& m);
void bind_distributed(py::module_& m);
void bind_files(py::module_& m);
void bind_finite(py::module_& m);
void bind_half_compute(py::module_& m);
void bind_known_fields(py::module_& m);
void bind_memory(py::module_& m);
void bind_model(py::module_& m);
void bind_optim(py::module_& m);
void bind_recipes(py::module_& m);
void bind_report(py::module_& m);
void bind_sampler(py::module_& m);
void bind_zero(py::module_& m);
