#include "bindings.h"
#include "kernels/device_kernels.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/averaged_model.h"
#include "mezzo/optim/clip_grad.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/lr_scheduler.h"
#include "mezzo/optim/param_groups.h"
#include "mezzo/optim/sgd.h"

namespace {

using namespace mezzo;

struct OptimizerArguments {
  std::string kind;
  std::vector<std::vector<at::Tensor>> groups;
  std::vector<double> weight_decays, lr_scales;
  double lr, momentum, max_grad_norm;
  bool nesterov;
};

std::vector<ParamGroup> param_groups(const OptimizerArguments& given) {
  std::vector<ParamGroup> result;
  for (size_t g = 0; g < given.groups.size(); ++g) {
    ParamGroup group{{}, given.weight_decays[g], given.lr_scales.empty() ? 1.0 : given.lr_scales[g]};
    for (size_t i = 0; i < given.groups[g].size(); ++i) {
      group.params.push_back({std::to_string(g) + "." + std::to_string(i), given.groups[g][i]});
    }
    result.push_back(std::move(group));
  }
  return result;
}

template <class Options>
Options with_common(Options options, const OptimizerArguments& given) {
  options.lr(given.lr).max_grad_norm(given.max_grad_norm);
  return options;
}

std::unique_ptr<Optimizer> make(std::vector<ParamGroup> groups, const OptimizerArguments& given) {
  const bool amsgrad = given.kind.ends_with(" amsgrad");
  if (given.kind.starts_with("adamw")) {
    return std::make_unique<AdamW>(std::move(groups), with_common(AdamWOptions().amsgrad(amsgrad), given));
  }
  if (given.kind.starts_with("adam")) {
    return std::make_unique<Adam>(std::move(groups), with_common(AdamOptions().amsgrad(amsgrad), given));
  }
  return std::make_unique<SGD>(std::move(groups),
                               with_common(SGDOptions().momentum(given.momentum).nesterov(given.nesterov), given));
}

/// {"state": {…}, "param_groups": […]} as Python has it.
py::dict to_python(const TorchOptimizerState& state) {
  py::dict result;
  result["state"] = py::cast(state.state);
  py::list groups;
  for (const auto& group : state.param_groups) {
    py::dict entry = py::cast(group.options);
    entry["params"] = py::cast(group.params);
    groups.append(entry);
  }
  result["param_groups"] = groups;
  return result;
}

TorchOptimizerState from_python(const py::dict& dict) {
  TorchOptimizerState state;
  state.state = dict["state"].cast<decltype(state.state)>();
  for (const auto& item : dict["param_groups"]) {
    auto& group = state.param_groups.emplace_back();
    for (const auto& [key, value] : item.cast<py::dict>()) {
      if (key.cast<std::string>() == "params") {
        group.params = value.cast<std::vector<int64_t>>();
      } else if (py::isinstance<py::int_>(value) && !py::isinstance<py::bool_>(value)) {
        group.options[key.cast<std::string>()] = value.cast<double>();
      } else if (!value.is_none()) {
        group.options[key.cast<std::string>()] = value.cast<TorchOption>();
      }
    }
  }
  return state;
}

void bind_kernels(py::module_& m) {
  using namespace kernels;
  const auto bind_summary = [&](const char* name, auto* summarize) {
    m.def(
        name,
        [summarize](const std::vector<at::Tensor>& gradients, std::optional<at::Tensor> scale, double max_norm) {
          const auto summary = summarize(gradients, scale.value_or(at::Tensor()), max_norm);
          return std::tuple(summary.norm, summary.found_inf, summary.inv_scale, summary.clip);
        },
        py::arg("gradients"), py::arg("scale"), py::arg("max_norm") = 1.0);
  };
  bind_summary("summarize_gradients", &summarize_gradients);
  bind_summary("reference_summarize_gradients", &reference::summarize_gradients);
  m.def("reference_round_stochastically", &reference::round_stochastically);
  // One update of parameters and all else, in place, by the kernels of the CPU or by the reference.
  m.def(
      "kernel_step",
      [](const std::string& kind, bool by_reference, const std::vector<at::Tensor>& params,
         const std::vector<at::Tensor>& gradients, const std::vector<at::Tensor>& steps,
         const std::vector<std::vector<at::Tensor>>& slots, const std::vector<std::optional<at::Tensor>>& half_copies,
         double lr, double weight_decay, double momentum, std::optional<at::Tensor> inv_scale,
         std::optional<at::Tensor> clip, std::optional<at::Tensor> found_inf, std::optional<uint64_t> rounding_seed,
         double eps, std::optional<at::Tensor> lr_tensor) {
        const at::NoGradGuard no_grad;
        ParameterUpdates updates;
        for (size_t i = 0; i < params.size(); ++i) {
          updates.push_back({params[i], gradients[i], half_copies[i].value_or(at::Tensor()), steps[i], slots[i], lr,
                             weight_decay, static_cast<uint32_t>(i), rounding_seed});
        }
        const GradientFactors factors{inv_scale.value_or(at::Tensor()), clip.value_or(at::Tensor()),
                                      found_inf.value_or(at::Tensor()), lr_tensor.value_or(at::Tensor())};
        const AdamSettings adam_settings{.beta1 = 0.9,
                                         .beta2 = 0.999,
                                         .eps = eps,
                                         .amsgrad = kind.ends_with(" amsgrad"),
                                         .decoupled = kind.starts_with("adamw")};
        const SgdSettings sgd_settings{momentum, false};
        const LambSettings lamb_settings{0.9, 0.999, 1e-6};
        if (kind == "sgd") {
          by_reference ? reference::sgd(updates, sgd_settings, factors) : sgd(updates, sgd_settings, factors);
        } else if (kind == "lamb") {
          by_reference ? reference::lamb(updates, lamb_settings, factors) : lamb(updates, lamb_settings, factors);
        } else {
          by_reference ? reference::adam(updates, adam_settings, factors) : adam(updates, adam_settings, factors);
        }
      },
      py::arg("kind"), py::arg("by_reference"), py::arg("params"), py::arg("gradients"), py::arg("steps"),
      py::arg("slots"), py::arg("half_copies"), py::arg("lr"), py::arg("weight_decay"), py::arg("momentum"),
      py::arg("inv_scale") = py::none(), py::arg("clip") = py::none(), py::arg("found_inf") = py::none(),
      py::arg("rounding_seed") = py::none(), py::arg("eps") = 1e-8, py::arg("lr_tensor") = py::none());
}

void bind_schedules(py::module_& m) {
  m.def(
      "get_schedule",
      [](const std::string& name, int64_t num_warmup_steps, int64_t num_training_steps, double min_lr_rate,
         std::optional<double> num_cycles, double power, std::optional<int64_t> timescale,
         std::optional<double> warmup_lr_rate, int64_t num_decay_steps, const std::string& warmup_type,
         const std::string& decay_type) {
        return get_schedule(name, {num_warmup_steps, num_training_steps, min_lr_rate, num_cycles, power, timescale,
                                   warmup_lr_rate, num_decay_steps, warmup_type, decay_type});
      },
      py::arg("name"), py::arg("num_warmup_steps"), py::arg("num_training_steps"), py::arg("min_lr_rate") = 0,
      py::arg("num_cycles") = py::none(), py::arg("power") = 1, py::arg("timescale") = py::none(),
      py::arg("warmup_lr_rate") = py::none(), py::arg("num_decay_steps") = 0, py::arg("warmup_type") = "linear",
      py::arg("decay_type") = "cosine");
  m.def("step_lr", &step_lr);
  m.def("multi_step_lr", &multi_step_lr);
  m.def("exponential_lr", &exponential_lr);
  m.def("sequential_lr", &sequential_lr);
  m.def("one_cycle_lr", [](int64_t total_steps, double pct_start, const std::string& anneal_strategy, double div_factor,
                           double final_div_factor, bool three_phase) {
    return one_cycle_lr({total_steps, pct_start, anneal_strategy, div_factor, final_div_factor, three_phase});
  });

  py::class_<ReduceLROnPlateau>(m, "ReduceLROnPlateau")
      .def(py::init([](bool greedy, double lr, const std::string& mode, double factor, int64_t patience,
                       double threshold, const std::string& threshold_mode, int64_t cooldown, int64_t warmup,
                       double min_lr, double max_lr, int64_t reset_start) -> std::unique_ptr<ReduceLROnPlateau> {
             const auto tensor = at::full({}, lr, at::kDouble);
             GreedyLROptions options;
             static_cast<ReduceLROnPlateauOptions&>(options) = {mode,           factor,   patience, threshold,
                                                                threshold_mode, cooldown, min_lr};
             if (!greedy) return std::make_unique<ReduceLROnPlateau>(tensor, options);
             options.max_lr = max_lr;
             options.warmup = warmup;
             options.reset_start = reset_start;
             return std::make_unique<GreedyLR>(tensor, options);
           }),
           py::arg("greedy"), py::arg("lr"), py::arg("mode") = "min", py::arg("factor") = 0.1, py::arg("patience") = 10,
           py::arg("threshold") = 1e-4, py::arg("threshold_mode") = "rel", py::arg("cooldown") = 0,
           py::arg("warmup") = 0, py::arg("min_lr") = 0, py::arg("max_lr") = 1, py::arg("reset_start") = 500)
      .def("step", &ReduceLROnPlateau::step)
      .def("lr", [](const ReduceLROnPlateau& self) { return self.get_last_lr().front(); })
      .def("state_dict", &ReduceLROnPlateau::state_dict)
      .def("load_state_dict", &ReduceLROnPlateau::load_state_dict);

  m.def("ema_average", [](double decay, const std::vector<at::Tensor>& averaged, const std::vector<at::Tensor>& current,
                          int64_t count) { get_ema_multi_avg_fn(decay)(averaged, current, count); });
  m.def("swa_average", [](const std::vector<at::Tensor>& averaged, const std::vector<at::Tensor>& current,
                          int64_t count) { get_swa_multi_avg_fn()(averaged, current, count); });

  m.def("param_groups", [](const std::map<std::string, at::Tensor>& parameters, double layer_lr_decay,
                           const std::function<int64_t(const std::string&)>& layer) {
    std::vector<NamedParameter> named;
    for (const auto& [name, tensor] : parameters) {
      named.push_back({name, tensor});
    }
    ParamGroupsOptions options;
    options.layer_lr_decay = layer_lr_decay;
    options.layer = [&](const NamedParameter& parameter) { return layer(parameter.name); };
    std::vector<std::tuple<double, double, std::vector<std::string>>> result;
    for (const ParamGroup& group : make_param_groups(named, options)) {
      auto& [weight_decay, lr_scale, names] =
          result.emplace_back(*group.weight_decay, group.lr_scale, std::vector<std::string>());
      for (const NamedParameter& parameter : group.params) {
        names.push_back(parameter.name);
      }
    }
    return result;
  });
}

}  // namespace

void bind_optim(py::module_& m) {
  py::class_<Optimizer, torch::optim::Optimizer>(m, "MezzoOptimizer")
      .def(py::init([](const std::string& kind, const std::vector<std::vector<at::Tensor>>& groups,
                       const std::vector<double>& weight_decays, double lr, double momentum, bool nesterov,
                       double max_grad_norm, const std::vector<double>& lr_scales) {
             const OptimizerArguments given{kind, groups,   weight_decays, lr_scales,
                                            lr,   momentum, max_grad_norm, nesterov};
             return make(param_groups(given), given);
           }),
           py::arg("kind"), py::arg("groups"), py::arg("weight_decays"), py::arg("lr"), py::arg("momentum") = 0,
           py::arg("nesterov") = false, py::arg("max_grad_norm") = 0, py::arg("lr_scales") = std::vector<double>())
      .def("step", [](Optimizer& self) { self.step(); })
      .def("found_inf", &Optimizer::found_inf)
      .def("lr", &Optimizer::lr)
      .def("state_dict", &Optimizer::state_dict)
      .def("torch_state_dict", [](const Optimizer& self) { return to_python(self.torch_state_dict()); })
      .def("load_torch_state_dict",
           [](Optimizer& self, const py::dict& state) { self.load_torch_state_dict(from_python(state)); });

  m.def("is_norm_parameter",
        [](const std::string& name, const at::Tensor& tensor) { return is_norm_parameter({name, tensor}); });

  m.def(
      "clip_grad_norm_",
      [](const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
        return clip_grad_norm_(parameters, max_norm, norm_type);
      },
      py::arg("parameters"), py::arg("max_norm"), py::arg("norm_type") = 2.0);
  m.def("clip_grad_value_",
        [](const std::vector<at::Tensor>& parameters, double clip_value) { clip_grad_value_(parameters, clip_value); });

  bind_kernels(m);

  bind_schedules(m);
}
