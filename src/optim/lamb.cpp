#include "mezzo/optim/lamb.h"

#include <c10/util/Exception.h>

#include "kernels/optimizer_kernels.h"
#include "optim/check_number.h"

namespace mezzo {
namespace {

void check(const LAMBOptions& options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "LAMB: betas must be in [0, 1), got ", beta1,
                    " and ", beta2);
  check_not_negative("LAMB: eps", options.eps());
}

}  // namespace

LAMB::LAMB(ParamGroups groups, LAMBOptions options)
    : Optimizer(std::move(groups),
                {.lr = options.lr(),
                 .max_grad_norm = options.max_grad_norm(),
                 .stochastic_rounding_seed = options.stochastic_rounding_seed(),
                 .weight_decay = options.weight_decay()}),
      options_(options) {
  check(options);
}

void LAMB::update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) {
  kernels::lamb(updates, {.beta1 = options_.betas().first, .beta2 = options_.betas().second, .eps = options_.eps()},
                factors);
}

TorchOptions LAMB::hyperparameters() const { return {{"betas", options_.betas()}, {"eps", options_.eps()}}; }

void LAMB::set_hyperparameters(const TorchOptions& options) {
  LAMBOptions changed = options_;
  changed.betas(std::get<std::pair<double, double>>(options.at("betas"))).eps(std::get<double>(options.at("eps")));
  check(changed);
  options_ = changed;
}

}  // namespace mezzo
