#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// The options of a parameter group of Muon, which LibTorch lacks; in the style of torch::optim.
struct MuonGroupOptions : torch::optim::OptimizerCloneableOptions<MuonGroupOptions> {
  MuonGroupOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  /// Shrinks the weights themselves.
  TORCH_ARG(double, weight_decay) = 0.1;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  using ns_coefficients_t = std::tuple<double, double, double>;
  /// Of the polynomial of a Newton-Schulz iteration.
  TORCH_ARG(ns_coefficients_t, ns_coefficients) = { 3.4445, -4.775, 2.0315 };
  /// Least norm that a direction is divided by.
  TORCH_ARG(double, eps) = 1e-7;
  /// Newton-Schulz iterations, 0 to 99.
  TORCH_ARG(int64_t, ns_steps) = 5;
  /// How the learning rate depends on a weight's sizes [A, B]: "original" multiplies it by
  /// sqrt(max(1, A / B)); "match_rms_adamw" by 0.2 sqrt(max(A, B)), so that learning rates and weight
  /// decays of AdamW fit.
  TORCH_ARG(std::string, adjust_lr_fn) = "original";

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
};

/// MuonGroupOptions, checked. A group's options are of that class: cast to MuonGroupOptions.
struct MuonOptions : CheckedOptions<MuonOptions, MuonGroupOptions> {
  using CheckedOptions::CheckedOptions;

  /// @throws c10::ValueError  for a parameter of `optimizer` that is no matrix
  static void check_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
  /// @throws c10::ValueError  for an option of Muon alone that is out of its range
  static void check(const MuonGroupOptions& options);
};

/// Muon for the weight matrices of hidden layers: momentum whose directions are orthogonalized, in
/// bfloat16. The numbers and defaults of torch.optim.Muon (Python, 2.9 and later). Give biases, norms,
/// embeddings and the output layer to AdamW.
/// @throws c10::ValueError  from the constructors, for a parameter that is no matrix
/// @see Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/
class Muon : public detail::OptimizerOf<MuonOptions, MuonGroupOptions, torch::optim::SGDParamState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  void update(const torch::optim::OptimizerOptions& options,
              const std::vector<ParameterUpdate>& updates,
              const GradientFactors& factors) override;
};

}  // namespace mezzo
