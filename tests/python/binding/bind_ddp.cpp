#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "bindings.h"
#include "mezzo/distributed/data_parallel/distributed_data_parallel.h"

namespace {

using namespace mezzo::distributed;
using py::literals::operator""_a;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A model of Python's as a C++ module: its very tensors, and its `forward`.
template <class Output>
struct ForeignModule : torch::nn::Module {
  ForeignModule(const NamedTensors& parameters, const NamedTensors& buffers, py::function function)
      : function_(std::move(function)) {
    for (const auto& [name, tensor] : parameters) {
      auto [module, leaf] = place(name);
      module->register_parameter(leaf, tensor, tensor.requires_grad());
    }
    for (const auto& [name, tensor] : buffers) {
      auto [module, leaf] = place(name);
      module->register_buffer(leaf, tensor);
    }
  }

  Output forward(const py::args& inputs) {
    const py::gil_scoped_acquire gil;
    if constexpr (requires { typename Output::Hidden; }) {
      return {function_(*inputs).template cast<at::Tensor>()};
    } else {
      return function_(*inputs).template cast<Output>();
    }
  }

 private:
  /// The submodule for "a.b.weight", made if it does not exist, and "weight".
  std::pair<torch::nn::Module*, std::string> place(const std::string& name) {
    torch::nn::Module* module = this;
    size_t begin = 0;
    for (size_t dot; (dot = name.find('.', begin)) != std::string::npos; begin = dot + 1) {
      const auto step = name.substr(begin, dot - begin);
      const auto children = module->named_children();
      module = children.contains(step) ? children[step].get()
                                       : module->register_module(step, std::make_shared<torch::nn::Module>()).get();
    }
    return {module, name.substr(begin)};
  }

  py::function function_;
};

/// An output that mezzo knows nothing of.
struct Opaque {
  using Hidden = void;
  at::Tensor tensor;
};

/// An output that says itself where its tensors are.
struct Described {
  using Hidden = void;
  at::Tensor tensor;
};
void visit_tensors(Described& output, const mezzo::TensorVisitor& visit) { visit(output.tensor); }

/// A row of an embedding with sparse gradients, and a layer on top.
struct SparseNetImpl : torch::nn::Module {
  SparseNetImpl()
      : rows(register_module("rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)))),
        top(register_module("top", torch::nn::Linear(4, 2))) {}
  at::Tensor forward(const at::Tensor& ids) { return top(rows(ids)); }

  torch::nn::Embedding rows;
  torch::nn::Linear top;
};
TORCH_MODULE(SparseNet);

/// "fp16", or "bf16(fp16)" for a wrapper around a hook.
CommHook parse_hook(const std::string& name) {
  if (const auto open = name.find('('); open != std::string::npos) {
    const auto inner = parse_hook(name.substr(open + 1, name.size() - open - 2));
    return name.substr(0, open) == "fp16" ? fp16_compress_wrapper(inner) : bf16_compress_wrapper(inner);
  }
  if (name == "nothing") {
    return [](const auto&, auto&) { return c10::intrusive_ptr<c10::ivalue::Future>(); };
  }
  return name == "fp16" ? fp16_compress_hook : name == "bf16" ? bf16_compress_hook : allreduce_hook;
}

class NoSyncContext {
 public:
  explicit NoSyncContext(DistributedDataParallelBase& module) : module_(module) {}
  void enter() { guard_.emplace(module_); }
  void exit() { guard_.reset(); }

 private:
  DistributedDataParallelBase& module_;
  std::optional<NoSyncGuard> guard_;
};

DistributedDataParallelOptions to_options(bool find_unused_parameters,
                                          bool static_graph,
                                          bool gradient_as_bucket_view,
                                          std::optional<double> bucket_cap_mb,
                                          bool broadcast_buffers,
                                          bool init_sync) {
  return DistributedDataParallelOptions()
      .find_unused_parameters(find_unused_parameters)
      .static_graph(static_graph)
      .gradient_as_bucket_view(gradient_as_bucket_view)
      .bucket_cap_mb(bucket_cap_mb)
      .broadcast_buffers(broadcast_buffers)
      .init_sync(init_sync);
}

template <class Class, class... Factory>
void bind_common(Class& bound) {
  using Ddp = typename Class::type;
  bound.def("train", [](Ddp& self, bool on) { self.module().train(on); })
      .def(
          "no_sync", [](Ddp& self) { return std::make_unique<NoSyncContext>(self); }, py::keep_alive<0, 1>())
      .def("register_comm_hook", [](Ddp& self, const std::string& name) { self.register_comm_hook(parse_hook(name)); })
      .def(
          "join",
          [](Ddp& self, const std::function<void()>& loop, bool divide_by_initial_world_size, bool throws) {
            const py::gil_scoped_release no_gil;
            self.join(loop, JoinOptions()
                                .divide_by_initial_world_size(divide_by_initial_world_size)
                                .throw_on_early_termination(throws));
          },
          py::arg("loop"), py::arg("divide_by_initial_world_size") = true,
          py::arg("throw_on_early_termination") = false)
      .def(
          "backward", [](Ddp& self, const at::Tensor& loss) { self.backward(loss); },
          py::call_guard<py::gil_scoped_release>())
      .def("names",
           [](const Ddp& self) {
             std::vector<std::string> names;
             for (const auto& item : self.named_parameters()) {
               names.push_back(item.key());
             }
             return names;
           })
      .def("stats", [](const Ddp& self) {
        const auto stats = self.comm_stats();
        return py::dict("steps"_a = stats.steps, "buckets"_a = stats.buckets, "gradient_bytes"_a = stats.gradient_bytes,
                        "seconds"_a = stats.seconds, "exposed_seconds"_a = stats.exposed_seconds,
                        "overlapped_share"_a = stats.overlapped_share());
      });
}

template <class Output>
void bind_foreign(py::module_& m, const char* name) {
  using Module = ForeignModule<Output>;
  using Ddp = DistributedDataParallel<Module>;
  py::class_<Ddp, std::shared_ptr<Ddp>> bound(m, name);
  bound
      .def(
          py::init([](const NamedTensors& parameters, const NamedTensors& buffers, py::function forward,
                      ProcessGroup& group, bool find_unused_parameters, bool static_graph, bool gradient_as_bucket_view,
                      std::optional<double> bucket_cap_mb, bool broadcast_buffers, bool init_sync) {
            auto module = std::make_shared<Module>(parameters, buffers, std::move(forward));
            const py::gil_scoped_release no_gil;
            return std::make_shared<Ddp>(module, group,
                                         to_options(find_unused_parameters, static_graph, gradient_as_bucket_view,
                                                    bucket_cap_mb, broadcast_buffers, init_sync));
          }),
          py::arg("parameters"), py::arg("buffers"), py::arg("forward"), py::arg("group"), py::kw_only(),
          py::arg("find_unused_parameters") = false, py::arg("static_graph") = false,
          py::arg("gradient_as_bucket_view") = false, py::arg("bucket_cap_mb") = py::none(),
          py::arg("broadcast_buffers") = true, py::arg("init_sync") = true, py::keep_alive<1, 5>())
      .def("__call__", [](Ddp& self, const py::args& inputs) {
        // Gloo's threads, too, need the lock: a collective may wait for them.
        auto output = [&] {
          const py::gil_scoped_release no_gil;
          return self(inputs);
        }();
        if constexpr (requires { typename Output::Hidden; }) {
          return output.tensor;
        } else {
          return output;
        }
      });
  bind_common(bound);
}

void bind_sparse(py::module_& m) {
  using Ddp = DistributedDataParallel<SparseNetImpl>;
  py::class_<Ddp, std::shared_ptr<Ddp>> bound(m, "SparseDdp");
  bound
      .def(py::init([](const std::vector<at::Tensor>& weights, ProcessGroup& group) {
             SparseNet net;
             const at::NoGradGuard no_grad;
             for (size_t i = 0; i < weights.size(); ++i) {
               net->parameters()[i].copy_(weights[i]);
             }
             return std::make_shared<Ddp>(net, group);
           }),
           py::keep_alive<1, 3>(), py::call_guard<py::gil_scoped_release>())
      .def(
          "__call__", [](Ddp& self, const at::Tensor& ids) { return self(ids); },
          py::call_guard<py::gil_scoped_release>())
      .def("gradients", [](Ddp& self) {
        std::vector<at::Tensor> gradients;
        for (const auto& parameter : self.module().parameters()) {
          gradients.push_back(parameter.grad());
        }
        return gradients;
      });
  bind_common(bound);
}

}  // namespace

void bind_ddp(py::module_& m) {
  py::class_<NoSyncContext>(m, "NoSyncContext")
      .def("__enter__", &NoSyncContext::enter)
      .def("__exit__", [](NoSyncContext& self, const py::args&) { self.exit(); });
  bind_foreign<at::Tensor>(m, "DdpTensor");
  bind_foreign<std::vector<at::Tensor>>(m, "DdpVector");
  bind_foreign<std::map<std::string, at::Tensor>>(m, "DdpMap");
  bind_foreign<std::tuple<at::Tensor, std::optional<at::Tensor>>>(m, "DdpTuple");
  bind_foreign<Opaque>(m, "DdpOpaque");
  bind_foreign<Described>(m, "DdpDescribed");
  bind_sparse(m);
}
