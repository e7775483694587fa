#include "mezzo/optim/muon.h"

#include <c10/util/Exception.h>

#include <utility>

#include "kernels/optimizer_kernels.h"
#include "optim/check_number.h"

namespace mezzo {
namespace {

constexpr auto kMatchRmsAdamW = "match_rms_adamw";

void check(const MuonOptions& options) {
  check_not_negative("Muon: momentum", options.momentum());
  check_not_negative("Muon: eps", options.eps());
  TORCH_CHECK_VALUE(options.ns_steps() >= 0 && options.ns_steps() < 100, "Muon: ns_steps must be 0 to 99, got ",
                    options.ns_steps());
  TORCH_CHECK_VALUE(options.adjust_lr_fn() == "original" || options.adjust_lr_fn() == kMatchRmsAdamW,
                    "Muon: adjust_lr_fn must be \"original\" or \"match_rms_adamw\", got \"", options.adjust_lr_fn(),
                    "\"");
}

}  // namespace

Muon::Muon(ParamGroups groups, MuonOptions options)
    : Optimizer(std::move(groups),
                {.lr = options.lr(),
                 .max_grad_norm = options.max_grad_norm(),
                 .stochastic_rounding_seed = options.stochastic_rounding_seed(),
                 .weight_decay = options.weight_decay()}),
      options_(options) {
  check(options);
  for (const ParamGroup& group : param_groups()) {
    for (const NamedParameter& parameter : group.params) {
      TORCH_CHECK_VALUE(parameter.tensor.dim() == 2, "Muon: parameter ", parameter.name, " has sizes ",
                        parameter.tensor.sizes(), ", and Muon trains matrices alone; give it to AdamW");
    }
  }
}

void Muon::update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) {
  kernels::muon(updates,
                {.momentum = options_.momentum(),
                 .nesterov = options_.nesterov(),
                 .ns_coefficients = options_.ns_coefficients(),
                 .eps = options_.eps(),
                 .ns_steps = options_.ns_steps(),
                 .matches_rms_adamw = options_.adjust_lr_fn() == kMatchRmsAdamW},
                factors);
}

TorchOptions Muon::hyperparameters() const {
  return {{"momentum", options_.momentum()}, {"nesterov", options_.nesterov()}, {"eps", options_.eps()}};
}

void Muon::set_hyperparameters(const TorchOptions& options) {
  MuonOptions changed = options_;
  changed.momentum(std::get<double>(options.at("momentum")))
      .nesterov(std::get<bool>(options.at("nesterov")))
      .eps(std::get<double>(options.at("eps")));
  check(changed);
  options_ = changed;
}

}  // namespace mezzo
