#pragma once

#include "mezzo/cpp20.h"

#include <torch/arg.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

struct AdamOptions {
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::pair<double, double>;
  /// Each in [0, 1).
  TORCH_ARG(betas_t, betas) = { 0.9, 0.999 };
  TORCH_ARG(double, eps) = 1e-8;
  /// Of groups that have none of their own; added to the gradient.
  TORCH_ARG(double, weight_decay) = 0;
  /// Divides by the largest second moment so far (Reddi et al. 2018, "On the
  /// convergence of Adam and beyond").
  TORCH_ARG(bool, amsgrad) = false;
  /// As StepOptions.
  TORCH_ARG(double, max_grad_norm) = 0;
  /// As StepOptions.
  TORCH_ARG(std::optional<uint64_t>, stochastic_rounding_seed) = std::nullopt;
};

/// As AdamOptions; weight decay shrinks the weights themselves.
struct AdamWOptions {
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::pair<double, double>;
  TORCH_ARG(betas_t, betas) = { 0.9, 0.999 };
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0.01;
  TORCH_ARG(bool, amsgrad) = false;
  TORCH_ARG(double, max_grad_norm) = 0;
  TORCH_ARG(std::optional<uint64_t>, stochastic_rounding_seed) = std::nullopt;
};

/// Adam (Kingma & Ba 2014); the numbers and defaults of torch.optim.Adam(fused=True). Weight decay
/// is added to the gradient. On the CPU, moments that become denormal are stored as 0.
class Adam : public Optimizer {
 public:
  explicit Adam(ParamGroups groups, AdamOptions options = {});
  explicit Adam(std::initializer_list<ParamGroup> groups, const AdamOptions& options = {})
      : Adam(ParamGroups(groups), options) {}
  std::string name() const override { return "Adam"; }

 protected:
  std::vector<std::string_view> slot_names() const override;
  bool counts_steps() const override { return true; }
  void update(const std::vector<ParameterUpdate>& updates, const GradientFactors& factors) override;
  TorchOptions hyperparameters() const override;
  void set_hyperparameters(const TorchOptions& options) override;
  virtual bool has_decoupled_weight_decay() const { return false; }

 private:
  AdamOptions options_;
};

/// AdamW (Loshchilov & Hutter 2017, "Decoupled weight decay regularization"); the numbers
/// and defaults of torch.optim.AdamW(fused=True). Weight decay shrinks the weights
/// themselves. Denormals as in Adam.
class AdamW : public Adam {
 public:
  explicit AdamW(ParamGroups groups, const AdamWOptions& options = {});
  explicit AdamW(std::initializer_list<ParamGroup> groups, const AdamWOptions& options = {})
      : AdamW(ParamGroups(groups), options) {}
  std::string name() const override { return "AdamW"; }

 protected:
  bool has_decoupled_weight_decay() const override { return true; }
};

}  // namespace mezzo
