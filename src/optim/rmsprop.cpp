#include "mezzo/optim/rmsprop.h"

#include <c10/util/Exception.h>

#include <utility>

#include "kernels/optimizer_kernels.h"
#include "optim/check_number.h"

namespace mezzo {
namespace {

void check(const RMSpropOptions& options) {
  TORCH_CHECK_VALUE(options.alpha() >= 0 && options.alpha() < 1, "RMSprop: alpha must be in [0, 1), got ",
                    options.alpha());
  check_not_negative("RMSprop: eps", options.eps());
  check_not_negative("RMSprop: momentum", options.momentum());
}

}  // namespace

RMSprop::RMSprop(ParamGroups groups, RMSpropOptions options)
    : Optimizer(std::move(groups),
                {.lr = options.lr(),
                 .max_grad_norm = options.max_grad_norm(),
                 .stochastic_rounding_seed = options.stochastic_rounding_seed(),
                 .weight_decay = options.weight_decay()}),
      options_(options) {
  check(options);
}

std::vector<std::string_view> RMSprop::slot_names() const {
  std::vector<std::string_view> names{"square_avg"};
  if (options_.momentum() != 0) {
    names.emplace_back("momentum_buffer");
  }
  if (options_.centered()) {
    names.emplace_back("grad_avg");
  }
  return names;
}

void RMSprop::update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) {
  kernels::rmsprop(updates,
                   {.alpha = options_.alpha(),
                    .eps = options_.eps(),
                    .momentum = options_.momentum(),
                    .centered = options_.centered(),
                    .maximize = options_.maximize()},
                   factors);
}

TorchOptions RMSprop::hyperparameters() const {
  return {{"alpha", options_.alpha()},
          {"eps", options_.eps()},
          {"momentum", options_.momentum()},
          {"centered", options_.centered()},
          {"maximize", options_.maximize()}};
}

void RMSprop::set_hyperparameters(const TorchOptions& options) {
  RMSpropOptions changed = options_;
  changed.alpha(std::get<double>(options.at("alpha")))
      .eps(std::get<double>(options.at("eps")))
      .momentum(std::get<double>(options.at("momentum")));
  check(changed);
  TORCH_CHECK_VALUE((changed.momentum() == 0) == (options_.momentum() == 0) &&
                        std::get<bool>(options.at("centered")) == options_.centered(),
                    "RMSprop: the state to load has momentum ", changed.momentum(), " and centered ",
                    std::get<bool>(options.at("centered")), ", this optimizer has ", options_.momentum(), " and ",
                    options_.centered(), "; make it with these options");
  options_ = changed;
}

}  // namespace mezzo
