#include "bindings.h"
#include "mezzo/text/tensorboard_writer.h"

namespace {

using mezzo::text::TensorBoardWriter;

void bind_tensorboard(py::module_& m) {
  py::class_<TensorBoardWriter>(m, "TensorBoardWriter")
      .def(py::init([](const std::string& folder, int64_t flush_every, std::optional<int64_t> purge_step) {
             return std::make_unique<TensorBoardWriter>(
                 folder, TensorBoardWriter::Options{.flush_every = flush_every, .purge_step = purge_step});
           }),
           py::arg("folder"), py::arg("flush_every") = 1, py::arg("purge_step") = py::none())
      .def("add_scalar", &TensorBoardWriter::add_scalar, py::arg("tag"), py::arg("value"), py::arg("step"),
           py::arg("wall_time") = py::none())
      .def("flush", &TensorBoardWriter::flush)
      .def("path", [](const TensorBoardWriter& self) { return self.path().string(); });
}

}  // namespace

void bind_report(py::module_& m) {
  bind_tensorboard(m);
}
