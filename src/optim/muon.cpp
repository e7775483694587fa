#include "mezzo/optim/muon.h"

#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <cmath>

#include "kernels/optimizer_kernels.h"

namespace mezzo {
namespace {

constexpr auto kMatchRmsAdamW = "match_rms_adamw";

}  // namespace

void MuonGroupOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(nesterov);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(ns_coefficients);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(ns_steps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(adjust_lr_fn);
}

void MuonGroupOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, nesterov);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(ns_coefficients_t, ns_coefficients);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, ns_steps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::string, adjust_lr_fn);
}

void MuonOptions::check_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  TORCH_CHECK_VALUE(parameter.dim() == 2, "Muon: ", detail::labelled_parameter(optimizer, parameter), " has sizes ",
                    parameter.sizes(), ", and Muon trains only matrices; give it to AdamW");
}

void MuonOptions::check(const MuonGroupOptions& options) {
  TORCH_CHECK_VALUE(options.ns_steps() >= 0 && options.ns_steps() < 100, "Muon: ns_steps must be 0 to 99, got ",
                    options.ns_steps());
  TORCH_CHECK_VALUE(options.adjust_lr_fn() == "original" || options.adjust_lr_fn() == kMatchRmsAdamW,
                    "Muon: adjust_lr_fn must be \"original\" or \"match_rms_adamw\", got \"", options.adjust_lr_fn(),
                    "\"");
  const auto [a, b, c] = options.ns_coefficients();
  TORCH_CHECK_VALUE(std::isfinite(a) && std::isfinite(b) && std::isfinite(c),
                    "Muon: ns_coefficients must be finite, got ", a, ", ", b, " and ", c);
}

void Muon::update(const torch::optim::OptimizerOptions& options,
                  const std::vector<ParameterUpdate>& updates,
                  const GradientFactors& factors) {
  const auto& of_group = static_cast<const MuonGroupOptions&>(options);
  const auto [a, b, c] = of_group.ns_coefficients();
  kernels::muon(updates,
                {.momentum = of_group.momentum(),
                 .nesterov = of_group.nesterov(),
                 .ns_coefficients = {a, b, c},
                 .eps = of_group.eps(),
                 .ns_steps = of_group.ns_steps(),
                 .matches_rms_adamw = of_group.adjust_lr_fn() == kMatchRmsAdamW},
                factors);
}

}  // namespace mezzo
