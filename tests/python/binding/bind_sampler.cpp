#include <torch/serialize/archive.h>

#include <sstream>

#include "bindings.h"
#include "mezzo/distributed/data_parallel/distributed_sampler.h"
#include "mezzo/text/data/balance.h"

using namespace mezzo::distributed;

void bind_sampler(py::module_& m) {
  py::class_<DistributedSampler>(m, "DistributedSampler")
      .def(py::init([](int64_t size, int64_t num_replicas, int64_t rank, bool shuffle, uint64_t seed, bool drop_last,
                       bool padding) {
             return DistributedSampler(size, DistributedSamplerOptions()
                                                 .num_replicas(num_replicas)
                                                 .rank(rank)
                                                 .shuffle(shuffle)
                                                 .seed(seed)
                                                 .drop_last(drop_last)
                                                 .padding(padding));
           }),
           py::arg("size"), py::arg("num_replicas"), py::arg("rank"), py::arg("shuffle") = true, py::arg("seed") = 0,
           py::arg("drop_last") = false, py::arg("padding") = true)
      .def("indices", &DistributedSampler::indices)
      .def("__len__", &DistributedSampler::size)
      .def("set_epoch", &DistributedSampler::set_epoch)
      .def("reset", &DistributedSampler::reset, py::arg("new_size") = py::none())
      .def("next", &DistributedSampler::next)
      .def("save",
           [](const DistributedSampler& self) {
             torch::serialize::OutputArchive archive;
             self.save(archive);
             std::ostringstream out;
             archive.save_to(out);
             return py::bytes(out.str());
           })
      .def("load", [](DistributedSampler& self, const std::string& saved) {
        torch::serialize::InputArchive archive;
        std::istringstream in(saved);
        archive.load_from(in);
        self.load(archive);
      });
  m.def("balance_by_tokens", &mezzo::text::balance_by_tokens);
}
