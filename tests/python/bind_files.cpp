#include "bindings.h"
#include "mezzo/text/safetensors.h"

using namespace mezzo::text;

void bind_files(py::module_& m) {
  py::class_<SafetensorsReader>(m, "SafetensorsReader")
      .def(py::init<const std::string&>())
      .def("names", &SafetensorsReader::names)
      .def("tensor", [](const SafetensorsReader& self, const std::string& name) { return self.tensor(name); })
      .def("metadata", &SafetensorsReader::metadata);
  m.def("save_safetensors",
        [](const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
           const std::map<std::string, std::string>& metadata) { save_safetensors(path, tensors, metadata); });
}
