#include "mezzo/optim/adam.h"

#include <c10/util/Exception.h>

#include "kernels/optimizer_kernels.h"
#include "optim/check_number.h"

namespace mezzo {
namespace {

void check(const AdamOptions& options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "Adam: betas must be in [0, 1), got ", beta1,
                    " and ", beta2);
  check_not_negative("Adam: eps", options.eps());
}

}  // namespace

Adam::Adam(ParamGroups groups, AdamOptions options)
    : Optimizer(std::move(groups),
                {.lr = options.lr(),
                 .max_grad_norm = options.max_grad_norm(),
                 .stochastic_rounding_seed = options.stochastic_rounding_seed(),
                 .weight_decay = options.weight_decay()}),
      options_(options) {
  check(options);
}

AdamW::AdamW(ParamGroups groups, const AdamWOptions& options)
    : Adam(std::move(groups),
           AdamOptions()
               .lr(options.lr())
               .betas(options.betas())
               .eps(options.eps())
               .weight_decay(options.weight_decay())
               .amsgrad(options.amsgrad())
               .max_grad_norm(options.max_grad_norm())
               .stochastic_rounding_seed(options.stochastic_rounding_seed())) {}

std::vector<std::string_view> Adam::slot_names() const {
  std::vector<std::string_view> names{"exp_avg", "exp_avg_sq"};
  if (options_.amsgrad()) {
    names.emplace_back("max_exp_avg_sq");
  }
  return names;
}

void Adam::update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) {
  kernels::adam(updates,
                {.beta1 = options_.betas().first,
                 .beta2 = options_.betas().second,
                 .eps = options_.eps(),
                 .amsgrad = options_.amsgrad(),
                 .decoupled = has_decoupled_weight_decay()},
                factors);
}

TorchOptions Adam::hyperparameters() const {
  return {{"betas", options_.betas()},
          {"eps", options_.eps()},
          {"amsgrad", options_.amsgrad()},
          {"maximize", false},
          {"decoupled_weight_decay", has_decoupled_weight_decay()}};
}

void Adam::set_hyperparameters(const TorchOptions& options) {
  AdamOptions changed = options_;
  changed.betas(std::get<std::pair<double, double>>(options.at("betas"))).eps(std::get<double>(options.at("eps")));
  check(changed);
  options_ = changed;
}

}  // namespace mezzo
