#include "mezzo/optim/sgd.h"

#include <c10/util/Exception.h>

#include "kernels/optimizer_kernels.h"
#include "optim/check_number.h"

namespace mezzo {

SGD::SGD(ParamGroups groups, SGDOptions options)
    : Optimizer(std::move(groups),
                {.lr = options.lr(),
                 .max_grad_norm = options.max_grad_norm(),
                 .stochastic_rounding_seed = options.stochastic_rounding_seed(),
                 .weight_decay = options.weight_decay()}),
      options_(options) {
  check_not_negative("SGD: momentum", options.momentum());
  TORCH_CHECK_VALUE(!options.nesterov() || options.momentum() > 0, "SGD: nesterov needs a momentum above 0");
}

std::vector<std::string_view> SGD::slot_names() const {
  return options_.momentum() == 0 ? std::vector<std::string_view>{} : std::vector<std::string_view>{"momentum_buffer"};
}

void SGD::update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) {
  kernels::sgd(updates, {.momentum = options_.momentum(), .nesterov = options_.nesterov()}, factors);
}

TorchOptions SGD::hyperparameters() const {
  return {
      {"momentum", options_.momentum()}, {"dampening", 0.0}, {"nesterov", options_.nesterov()}, {"maximize", false}};
}

void SGD::set_hyperparameters(const TorchOptions& options) {
  const double momentum = std::get<double>(options.at("momentum"));
  check_not_negative("SGD: momentum", momentum);
  TORCH_CHECK_VALUE((momentum == 0) == (options_.momentum() == 0), "SGD: the state to load has momentum ", momentum,
                    ", this optimizer has ", options_.momentum(), "; make it with or without momentum alike");
  options_.momentum(momentum);
}

}  // namespace mezzo
