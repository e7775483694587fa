#include "bindings.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/overflow_report.h"
#include "mezzo/distributed/zero/sharded_master_weights.h"
#include "mezzo/distributed/zero/zero_redundancy_optimizer.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/sgd.h"

namespace {

using namespace mezzo;
using namespace mezzo::distributed;
using Group = std::shared_ptr<ProcessGroup>;
using NoGil = py::call_guard<py::gil_scoped_release>;

/// An optimizer over named parameters in two groups: parameters of one dimension without weight
/// decay, at half the lr.
std::vector<ParamGroup> two_groups(const std::vector<NamedParameter>& parameters) {
  ParamGroup decayed{{}, 0.01, 1.0}, plain{{}, 0.0, 0.5};
  for (const NamedParameter& parameter : parameters) {
    (parameter.tensor.dim() > 1 ? decayed : plain).params.push_back(parameter);
  }
  return {decayed, plain};
}

struct Arguments {
  std::string kind;
  double lr, max_grad_norm;
  std::optional<uint64_t> seed;
};

std::unique_ptr<mezzo::Optimizer> make(const std::vector<NamedParameter>& parameters, const Arguments& given) {
  const auto with = [&](auto options) {
    return options.lr(given.lr).max_grad_norm(given.max_grad_norm).stochastic_rounding_seed(given.seed);
  };
  auto groups = two_groups(parameters);
  if (given.kind == "adamw") return std::make_unique<AdamW>(std::move(groups), with(AdamWOptions()));
  if (given.kind == "adam") return std::make_unique<Adam>(std::move(groups), with(AdamOptions()));
  if (given.kind == "lamb") return std::make_unique<LAMB>(std::move(groups), with(LAMBOptions()));
  return std::make_unique<SGD>(std::move(groups), with(SGDOptions().momentum(0.9)));
}

/// The objects of a program: parameters, masters on request, and an optimizer, divided if there is
/// a group.
class Setup {
 public:
  Setup(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
        const Arguments& given,
        Group group,
        std::optional<at::ScalarType> masters,
        bool keeps_all_masters,
        int64_t bucket_bytes)
      : group_(std::move(group)) {
    std::vector<NamedParameter> named;
    for (const auto& [name, tensor] : parameters) {
      named.push_back({name, tensor});
    }
    if (masters) {
      const bool divides = group_ && !keeps_all_masters;
      const auto owner = partition_parameters(two_groups(named), divides ? group_->size() : 1);
      masters_.emplace(named, *masters, owner, divides ? group_->rank() : 0);
      named = masters_->masters();
    }
    auto optimizer = make(named, given);
    if (group_) {
      zero_ = std::make_unique<ZeroRedundancyOptimizer>(*group_, std::move(optimizer),
                                                        ZeroRedundancyOptimizerOptions().bucket_bytes(bucket_bytes));
    } else {
      plain_ = std::move(optimizer);
    }
  }

  torch::optim::Optimizer& stepping() { return zero_ ? static_cast<torch::optim::Optimizer&>(*zero_) : *plain_; }
  const mezzo::Optimizer& local() { return zero_ ? zero_->local() : *plain_; }
  void zero_grad() { zero_ ? zero_->zero_grad() : plain_->zero_grad(); }
  void set_lr(double lr) { zero_ ? zero_->set_lr(lr) : plain_->set_lr(lr); }
  void load_state_dict(const std::map<std::string, at::Tensor>& state) {
    zero_ ? zero_->load_state_dict(state) : plain_->load_state_dict(state);
  }
  ZeroRedundancyOptimizer& zero() { return *zero_; }
  ShardedMasterWeights& masters() { return *masters_; }
  std::map<std::string, at::Tensor> state_dict(int to) { return zero_ ? zero_->state_dict(to) : plain_->state_dict(); }
  std::map<std::string, at::Tensor> weights(int to) {
    if (zero_) {
      return zero_->weights(to);
    }
    std::map<std::string, at::Tensor> result;
    for (const ParamGroup& group : plain_->named_param_groups()) {
      for (const NamedParameter& parameter : group.params) {
        result[parameter.name] = parameter.tensor.detach();
      }
    }
    return result;
  }

 private:
  Group group_;
  std::optional<ShardedMasterWeights> masters_;
  std::unique_ptr<ZeroRedundancyOptimizer> zero_;
  std::unique_ptr<mezzo::Optimizer> plain_;
};

}  // namespace

void bind_zero(py::module_& m) {
  m.def("partition_parameters", [](const std::vector<std::vector<at::Tensor>>& groups, int num_ranks) {
    std::vector<ParamGroup> named;
    for (size_t g = 0; g < groups.size(); ++g) {
      ParamGroup& group = named.emplace_back();
      for (size_t i = 0; i < groups[g].size(); ++i) {
        group.params.push_back({std::to_string(g) + "." + std::to_string(i), groups[g][i]});
      }
    }
    return partition_parameters(named, num_ranks);
  });

  py::class_<Setup>(m, "OptimizerSetup")
      .def(py::init([](const std::vector<std::pair<std::string, at::Tensor>>& parameters, const std::string& kind,
                       double lr, double max_grad_norm, std::optional<uint64_t> seed, Group group,
                       std::optional<at::ScalarType> masters, bool keeps_all_masters, int64_t bucket_bytes) {
             return std::make_unique<Setup>(parameters, Arguments{kind, lr, max_grad_norm, seed}, std::move(group),
                                            masters, keeps_all_masters, bucket_bytes);
           }),
           py::arg("parameters"), py::arg("kind"), py::arg("lr"), py::arg("max_grad_norm") = 0,
           py::arg("stochastic_rounding_seed") = py::none(), py::arg("group") = Group(),
           py::arg("masters") = py::none(), py::arg("keeps_all_masters") = false, py::arg("bucket_bytes") = 25 << 20,
           NoGil())
      .def(
          "step", [](Setup& self) { self.stepping().step({}); }, NoGil())
      .def(
          "step_with",
          [](Setup& self, const torch::optim::Optimizer::LossClosure& closure) {
            return self.stepping().step(closure);
          },
          NoGil())
      .def(
          "scaled_by", [](Setup& self, GradScaler& scaler) { return scaler.step(self.stepping()).stepped(); }, NoGil())
      .def(
          "unscaled_by", [](Setup& self, GradScaler& scaler) { scaler.unscale_(self.stepping()); }, NoGil())
      .def("overflow_summary", [](Setup& self) { return overflow_report(self.stepping()).summary(); })
      .def("zero_grad", &Setup::zero_grad)
      .def("set_lr", &Setup::set_lr)
      .def("grad_norm", [](Setup& self) { return self.local().grad_norm(); })
      .def("found_inf", [](Setup& self) { return self.local().found_inf(); })
      .def("state_dict", &Setup::state_dict, py::arg("to") = 0, NoGil())
      .def("own_state_dict", [](Setup& self) { return self.local().state_dict(); })
      .def("load_state_dict", &Setup::load_state_dict)
      .def("weights", &Setup::weights, py::arg("to") = 0, NoGil())
      .def("accumulate_gradients", [](Setup& self) { self.masters().accumulate_gradients(); })
      .def("own_masters", [](Setup& self) { return self.masters().state_dict(); })
      .def("load_masters",
           [](Setup& self, const std::map<std::string, at::Tensor>& state) { self.masters().load_state_dict(state); })
      .def("masters_to_float32", [](Setup& self) { self.masters().to_float32(); })
      .def("state_bytes", [](Setup& self) { return self.zero().state_bytes(); })
      .def("owns", [](Setup& self, const std::string& name) { return self.zero().owns(name); })
      .def("statistics", [](Setup& self) {
        const auto& s = self.zero().statistics();
        return py::dict(py::arg("steps") = s.steps, py::arg("messages") = s.messages,
                        py::arg("bytes_sent") = s.bytes_sent, py::arg("bytes_received") = s.bytes_received);
      });
}
