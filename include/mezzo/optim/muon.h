#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

struct MuonOptions {
  TORCH_ARG(double, lr) = 1e-3;
  /// Of groups that have none of their own; shrinks the weights.
  TORCH_ARG(double, weight_decay) = 0.1;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  using ns_coefficients_t = std::array<double, 3>;
  /// Of the polynomial of a Newton-Schulz iteration.
  TORCH_ARG(ns_coefficients_t, ns_coefficients) = { 3.4445, -4.775, 2.0315 };
  /// Least norm that a direction is divided by.
  TORCH_ARG(double, eps) = 1e-7;
  /// Newton-Schulz iterations, 0 to 99.
  TORCH_ARG(int64_t, ns_steps) = 5;
  /// How the learning rate depends on a weight's sizes [A, B]: "original" multiplies it by
  /// sqrt(max(1, A / B)); "match_rms_adamw", by 0.2 sqrt(max(A, B)), so that learning rates and weight
  /// decays of AdamW fit.
  TORCH_ARG(std::string, adjust_lr_fn) = "original";
  /// As StepOptions.
  TORCH_ARG(double, max_grad_norm) = 0;
  /// As StepOptions.
  TORCH_ARG(std::optional<uint64_t>, stochastic_rounding_seed) = std::nullopt;
};

/// Muon for the weight matrices of hidden layers: momentum whose directions are orthogonalized, in
/// bfloat16. The numbers and defaults of torch.optim.Muon (Python, 2.9 and later). Give biases, norms,
/// embeddings and the output layer to AdamW.
/// @see Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/
class Muon : public Optimizer {
 public:
  /// @throws c10::ValueError  as Optimizer's constructor; naming a parameter that is no matrix; for a
  ///     `momentum` or `eps` that is negative or not finite, and other `ns_steps` or `adjust_lr_fn`
  explicit Muon(ParamGroups groups, MuonOptions options = {});
  explicit Muon(std::initializer_list<ParamGroup> groups, const MuonOptions& options = {})
      : Muon(ParamGroups(groups), options) {}
  std::string name() const override { return "Muon"; }

 protected:
  std::vector<std::string_view> slot_names() const override { return {"momentum_buffer"}; }
  bool counts_steps() const override { return false; }
  void update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) override;
  TorchOptions hyperparameters() const override;
  void set_hyperparameters(const TorchOptions& options) override;

 private:
  MuonOptions options_;
};

}  // namespace mezzo
