#include "bindings.h"
#include "mezzo/distributed/data_parallel/shared_memory_all_reduce.h"
#include "mezzo/distributed/group/process_group.h"

namespace {

using namespace mezzo::distributed;

ProcessGroupOptions with_timeout(double seconds) {
  return ProcessGroupOptions().timeout(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
}

/// A group that always ends without the GIL, because its threads may need the GIL before they end.
std::shared_ptr<ProcessGroup> group_of_this_rank(double timeout) {
  return {new ProcessGroup(RankEnvironment::detect().value(), with_timeout(timeout)), [](ProcessGroup* ended) {
            std::optional<py::gil_scoped_release> no_gil;
            if (PyGILState_Check() != 0) {
              no_gil.emplace();
            }
            delete ended;
          }};
}

c10d::ReduceOp reduce_op(const std::string& name) {
  using c10d::ReduceOp;
  static const std::map<std::string, ReduceOp::RedOpType> ops = {
      {"sum", ReduceOp::SUM}, {"max", ReduceOp::MAX}, {"min", ReduceOp::MIN}, {"product", ReduceOp::PRODUCT}};
  return ops.at(name);
}

}  // namespace

void bind_distributed(py::module_& m) {
  py::class_<RankEnvironment>(m, "RankEnvironment")
      .def_static("detect",
                  [](const std::map<std::string, std::string>& variables) {
                    return RankEnvironment::detect([&](const char* name) -> std::optional<std::string> {
                      const auto found = variables.find(name);
                      return found == variables.end() ? std::nullopt : std::optional(found->second);
                    });
                  })
      .def_readonly("rank", &RankEnvironment::rank)
      .def_readonly("world_size", &RankEnvironment::world_size)
      .def_readonly("local_rank", &RankEnvironment::local_rank)
      .def_readonly("local_world_size", &RankEnvironment::local_world_size)
      .def_readonly("master_addr", &RankEnvironment::master_addr)
      .def_readonly("master_port", &RankEnvironment::master_port)
      .def_readonly("launcher_hosts_store", &RankEnvironment::launcher_hosts_store)
      .def_readonly("restart_count", &RankEnvironment::restart_count)
      .def_readonly("launcher", &RankEnvironment::launcher);

  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<ProcessGroup, std::shared_ptr<ProcessGroup>>(m, "ProcessGroup")
      .def(py::init(&group_of_this_rank), py::arg("timeout") = 60.0, NoGil())
      .def(
          "all_reduce",
          [](ProcessGroup& self, at::Tensor& tensor, const std::string& op) { self.all_reduce(tensor, reduce_op(op)); },
          py::arg("tensor"), py::arg("op") = "sum", NoGil())
      .def("all_gather", py::overload_cast<const at::Tensor&>(&ProcessGroup::all_gather), NoGil())
      .def(
          "reduce_scatter",
          [](ProcessGroup& self, const at::Tensor& tensor, const std::string& op) {
            return self.reduce_scatter(tensor, reduce_op(op));
          },
          py::arg("tensor"), py::arg("op") = "sum", NoGil())
      .def("all_to_all", &ProcessGroup::all_to_all, py::arg("tensor"),
           py::arg("output_split_sizes") = std::vector<int64_t>(),
           py::arg("input_split_sizes") = std::vector<int64_t>(), NoGil())
      .def(
          "new_group",
          [](ProcessGroup& self, const std::vector<int>& ranks) {
            return std::shared_ptr<ProcessGroup>(self.new_group(ranks));
          },
          py::keep_alive<0, 1>(), NoGil())
      .def("rank", &ProcessGroup::rank)
      .def("size", &ProcessGroup::size)
      .def("broadcast", &ProcessGroup::broadcast, py::arg("tensor"), py::arg("root") = 0, NoGil())
      .def("all_gather", py::overload_cast<const std::string&>(&ProcessGroup::all_gather), NoGil())
      .def("barrier", &ProcessGroup::barrier, NoGil())
      .def("any", &ProcessGroup::any, NoGil())
      .def("check_same", &ProcessGroup::check_same, NoGil())
      .def("all_or_none", &ProcessGroup::all_or_none, NoGil())
      .def("guard", &ProcessGroup::guard, NoGil())
      .def("shutdown", &ProcessGroup::shutdown, NoGil());

  py::class_<SharedMemoryAllReduce>(m, "SharedMemoryAllReduce")
      .def_static("create", &SharedMemoryAllReduce::create, NoGil())
      .def(
          "sum",
          [](SharedMemoryAllReduce& self, ProcessGroup& group, at::Tensor& tensor) {
            group.guard([&] { self.sum(tensor); });
          },
          NoGil());
}
