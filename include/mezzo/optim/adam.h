#pragma once

#include <torch/arg.h>

#include <utility>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

struct AdamOptions {
  TORCH_ARG(double, lr) = 1e-3;
  using betas_t = std::pair<double, double>;
  TORCH_ARG(betas_t, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
};

/// Adam (Kingma & Ba 2014); the numbers of torch.optim.Adam(fused=True). Weight decay is the groups'; it is added to
/// the gradient.
class Adam : public Optimizer {
 public:
  Adam(std::vector<ParamGroup> groups, AdamOptions options);
  std::string name() const override { return "Adam"; }

 protected:
  std::vector<std::string_view> slot_names() const override { return {"step", "exp_avg", "exp_avg_sq"}; }
  at::Tensor initial_slot(size_t slot, const at::Tensor& param) const override;
  void update(Bucket& bucket, const at::Tensor& grad_scale, const at::Tensor& found_inf) override;
  const AdamOptions& options() const { return options_; }

 private:
  AdamOptions options_;
};

/// AdamW (Loshchilov & Hutter 2017, "Decoupled weight decay regularization"); the numbers of
/// torch.optim.AdamW(fused=True). Weight decay is the groups'; it shrinks the weights themselves.
class AdamW : public Adam {
 public:
  using Adam::Adam;
  std::string name() const override { return "AdamW"; }

 protected:
  void update(Bucket& bucket, const at::Tensor& grad_scale, const at::Tensor& found_inf) override;
};

}  // namespace mezzo
