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

/// The options of a parameter group of Muon, in the style of torch::optim. LibTorch has no Muon.
struct MuonGroupOptions : torch::optim::OptimizerCloneableOptions<MuonGroupOptions> {
  /// @param lr  learning rate
  MuonGroupOptions(double lr = 1e-3) : lr_(lr) {}
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Decoupled weight decay: shrinks the weights directly.
  TORCH_ARG(double, weight_decay) = 0.1;
  /// Decay of the momentum. In [0, 1).
  TORCH_ARG(double, momentum) = 0.95;
  /// Whether the momentum is Nesterov's.
  TORCH_ARG(bool, nesterov) = true;
  /// Coefficients a, b and c.
  using ns_coefficients_t = std::tuple<double, double, double>;
  /// The coefficients of the polynomial of a Newton-Schulz iteration.
  TORCH_ARG(ns_coefficients_t, ns_coefficients) = { 3.4445, -4.775, 2.0315 };
  /// The smallest divisor of a direction's norm.
  TORCH_ARG(double, eps) = 1e-7;
  /// The number of Newton-Schulz iterations, 0 to 99.
  TORCH_ARG(int64_t, ns_steps) = 5;
  /// The dependence of the learning rate on a weight's sizes [A, B]. "original" multiplies it by
  /// sqrt(max(1, A / B)). "match_rms_adamw" multiplies it by 0.2 sqrt(max(A, B)), so that AdamW's
  /// learning rates and weight decays can be used.
  TORCH_ARG(std::string, adjust_lr_fn) = "original";

 public:
  /// Reads the options from an archive.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes the options to an archive.
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// For LibTorch's schedulers.
  double get_lr() const override { return lr(); }
  /// For LibTorch's schedulers.
  void set_lr(const double lr) override { this->lr(lr); }
};

/// MuonGroupOptions with checks. A group's options have the class MuonGroupOptions: cast them to
/// it.
struct MuonOptions : CheckedOptions<MuonOptions, MuonGroupOptions> {
  /// Takes a learning rate or MuonGroupOptions.
  using CheckedOptions::CheckedOptions;

  /// @throws c10::ValueError  for a parameter of `optimizer` that is not a matrix
  static void check_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);
  /// @throws c10::ValueError  for an option that only Muon has, if it is out of its range
  static void check(const MuonGroupOptions& options);
};

/// Muon for the weight matrices of hidden layers: momentum whose directions are orthogonalized, in
/// bfloat16. It has the numbers and defaults of torch.optim.Muon (Python, 2.9 and later). Train
/// biases, norms, embeddings and the output layer with AdamW.
/// @throws c10::ValueError  from the constructors, for a parameter that is not a matrix
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
