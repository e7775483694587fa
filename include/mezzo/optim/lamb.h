#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

struct LAMBOptions {
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::pair<double, double>;
  TORCH_ARG(betas_t, betas) = { 0.9, 0.999 };
  TORCH_ARG(double, eps) = 1e-6;
  /// Of groups that have none of their own; added to the direction.
  TORCH_ARG(double, weight_decay) = 0;
  /// As StepOptions.
  TORCH_ARG(double, max_grad_norm) = 0;
  /// As StepOptions.
  TORCH_ARG(std::optional<uint64_t>, stochastic_rounding_seed) = std::nullopt;
};

/// LAMB (You et al. 2019, "Large batch optimization for deep learning", algorithm 2, with the
/// identity as phi and bias correction): Adam's direction plus weight decay, scaled per parameter
/// to lr times the parameter's norm. A parameter or direction of norm 0 takes the plain step.
class LAMB : public Optimizer {
 public:
  explicit LAMB(ParamGroups groups, LAMBOptions options = {});
  explicit LAMB(std::initializer_list<ParamGroup> groups, const LAMBOptions& options = {})
      : LAMB(ParamGroups(groups), options) {}
  std::string name() const override { return "LAMB"; }

 protected:
  std::vector<std::string_view> slot_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool counts_steps() const override { return true; }
  void update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) override;
  TorchOptions hyperparameters() const override;
  void set_hyperparameters(const TorchOptions& options) override;

 private:
  LAMBOptions options_;
};

}  // namespace mezzo
