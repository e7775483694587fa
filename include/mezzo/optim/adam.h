#pragma once

#include "mezzo/cpp20.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// torch::optim::AdamOptions, the same defaults.
/// A group's options are of LibTorch's class: cast to torch::optim::AdamOptions.
struct AdamOptions : CheckedOptions<AdamOptions, torch::optim::AdamOptions> {
  using CheckedOptions::CheckedOptions;
};

/// torch::optim::AdamWOptions, the same defaults.
/// A group's options are of LibTorch's class: cast to torch::optim::AdamWOptions.
struct AdamWOptions : CheckedOptions<AdamWOptions, torch::optim::AdamWOptions> {
  using CheckedOptions::CheckedOptions;
};

/// Adam (Kingma & Ba 2014); the numbers of torch.optim.Adam(fused=True). Weight decay is added to
/// the gradient. With `amsgrad`, divides by the largest second moment so far (Reddi et al. 2018,
/// "On the convergence of Adam and beyond"). On the CPU, moments that become denormal are stored
/// as 0.
class Adam : public detail::OptimizerOf<AdamOptions, torch::optim::AdamOptions, torch::optim::AdamParamState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  void update(const torch::optim::OptimizerOptions& options,
              const std::vector<ParameterUpdate>& updates,
              const GradientFactors& factors) override;
};

/// AdamW (Loshchilov & Hutter 2017, "Decoupled weight decay regularization"); the numbers
/// of torch.optim.AdamW(fused=True). Weight decay shrinks the weights themselves. `amsgrad` and
/// denormals as in Adam.
class AdamW : public detail::OptimizerOf<AdamWOptions, torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  void update(const torch::optim::OptimizerOptions& options,
              const std::vector<ParameterUpdate>& updates,
              const GradientFactors& factors) override;
};

}  // namespace mezzo
