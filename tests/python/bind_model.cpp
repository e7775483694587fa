#include "bindings.h"
#include "kernels/dropout.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/sgd.h"
#include "mezzo/text/batching.h"
#include "mezzo/text/bert.h"
#include "mezzo/text/pretrained.h"

namespace {

using namespace mezzo;
using namespace mezzo::text;

/// A model and what Python needs to drive it; tensors are shared.
class Bert {
 public:
  Bert(const std::string& folder, uint64_t seed)
      : model_(std::make_shared<BertForSequenceClassification>(BertConfig::from_file(folder + "/config.json"))),
        loaded_(load_pretrained(*model_, folder, seed)) {}

  std::map<std::string, at::Tensor> parameters() const {
    std::map<std::string, at::Tensor> result;
    for (const auto& item : model_->named_parameters()) {
      result[item.key()] = item.value();
    }
    return result;
  }

  at::Tensor forward(std::vector<std::vector<int32_t>> ids,
                     const std::string& batching,
                     int64_t max_length,
                     uint64_t seed,
                     uint32_t step) {
    TokenizedTexts texts{std::move(ids), {}};
    std::vector<int64_t> indices(texts.ids.size());
    std::iota(indices.begin(), indices.end(), 0);
    const auto batch = collate(texts, indices, parse_batching(batching), max_length, model_->config().pad_token_id);
    return model_->forward(batch, {seed, step});
  }

  void train(bool on) { model_->train(on); }
  const LoadedWeights& loaded() const { return loaded_; }

 private:
  std::shared_ptr<BertForSequenceClassification> model_;
  LoadedWeights loaded_;
};

/// One group a list of parameters; `weight_decays` one each.
std::vector<ParamGroup> param_groups(const std::vector<std::vector<at::Tensor>>& groups,
                                     const std::vector<double>& weight_decays) {
  std::vector<ParamGroup> result;
  for (size_t g = 0; g < groups.size(); ++g) {
    ParamGroup group{{}, weight_decays[g]};
    for (size_t i = 0; i < groups[g].size(); ++i) {
      group.params.push_back({std::to_string(g) + "." + std::to_string(i), groups[g][i]});
    }
    result.push_back(std::move(group));
  }
  return result;
}

std::unique_ptr<Optimizer> make_optimizer(const std::string& kind,
                                          const std::vector<std::vector<at::Tensor>>& groups,
                                          const std::vector<double>& weight_decays,
                                          double lr,
                                          double momentum) {
  auto made = param_groups(groups, weight_decays);
  if (kind == "adamw") return std::make_unique<AdamW>(std::move(made), AdamOptions().lr(lr));
  if (kind == "adam") return std::make_unique<Adam>(std::move(made), AdamOptions().lr(lr));
  if (kind == "sgd") return std::make_unique<SGD>(std::move(made), SGDOptions().lr(lr).momentum(momentum));
  return std::make_unique<LAMB>(std::move(made), LAMBOptions().lr(lr));
}

}  // namespace

void bind_model(py::module_& m) {
  py::class_<Bert>(m, "Bert")
      .def(py::init<std::string, uint64_t>(), py::arg("folder"), py::arg("seed") = 0)
      .def("parameters", &Bert::parameters)
      .def("forward", &Bert::forward, py::arg("ids"), py::arg("batching") = "packed", py::arg("max_length") = 128,
           py::arg("seed") = 0, py::arg("step") = 0)
      .def("train", &Bert::train)
      .def_property_readonly("initialised", [](const Bert& self) { return self.loaded().initialised; })
      .def_property_readonly("unused", [](const Bert& self) { return self.loaded().unused; });

  py::class_<Optimizer>(m, "MezzoOptimizer")
      .def(py::init(&make_optimizer), py::arg("kind"), py::arg("groups"), py::arg("weight_decays"), py::arg("lr"),
           py::arg("momentum") = 0)
      .def("step", [](Optimizer& self) { self.step(); })
      .def("step_scaled", &Optimizer::step_scaled)
      .def("zero_grad", &Optimizer::zero_grad)
      .def("set_lr", &Optimizer::set_lr)
      .def("state_dict", &Optimizer::state_dict)
      .def("load_state_dict", &Optimizer::load_state_dict);

  m.def("lr_factor", [](const std::string& kind, int64_t warmup_steps, int64_t total_steps, int64_t step) {
    return LrSchedule{parse_lr_schedule(kind), warmup_steps, total_steps}.factor(step);
  });
}
