#pragma once

#include "mezzo/cpp20.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <vector>

#include "mezzo/optim/optimizer.h"

namespace mezzo {

/// The options of torch::optim::AdamOptions, with the same defaults. A group's options have
/// LibTorch's class: cast them to torch::optim::AdamOptions.
struct AdamOptions : CheckedOptions<AdamOptions, torch::optim::AdamOptions> {
  /// Takes a learning rate or LibTorch's options.
  using CheckedOptions::CheckedOptions;
};

/// The options of torch::optim::AdamWOptions, with the same defaults. A group's options have
/// LibTorch's class: cast them to torch::optim::AdamWOptions.
struct AdamWOptions : CheckedOptions<AdamWOptions, torch::optim::AdamWOptions> {
  /// Takes a learning rate or LibTorch's options.
  using CheckedOptions::CheckedOptions;
};

/// Adam (Kingma & Ba 2014), with the numbers of torch.optim.Adam(fused=True). Weight decay is added
/// to the gradient. With `amsgrad`, divides by the largest second moment so far (Reddi et al. 2018,
/// "On the convergence of Adam and beyond"). On the CPU, denormal moments are stored as 0.
class Adam : public detail::OptimizerOf<AdamOptions, torch::optim::AdamOptions, torch::optim::AdamParamState> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  void update(const torch::optim::OptimizerOptions& options,
              const std::vector<ParameterUpdate>& updates,
              const GradientFactors& factors) override;
};

/// AdamW (Loshchilov & Hutter 2017, "Decoupled weight decay regularization"), with the numbers of
/// torch.optim.AdamW(fused=True). Weight decay shrinks the weights directly. `amsgrad` and
/// denormals as in Adam.
class AdamW : public detail::OptimizerOf<AdamWOptions, torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
 public:
  using OptimizerOf::OptimizerOf;

  /// Makes `step` update only the rows of an embedding `table` that were read since `zero_grad`.
  /// The other rows must have gradients of 0. Their updates wait until `read_rows`, `catch_up`, or
  /// a call that reads or writes the optimizer's state. All results are bit-identical to whole
  /// updates. A step then costs little memory traffic for a table with many rows.
  ///
  /// The table's gradient stays allocated: `zero_grad` sets the gradients of the rows that were
  /// read to 0, also if it is asked to drop gradients.
  /// @param table  a parameter of this optimizer: [R, C], float32, contiguous, on the CPU, without
  ///     a half copy
  /// @throws c10::ValueError  for another tensor, a second table, `amsgrad`, `maximize` or
  ///     stochastic rounding
  void defer_rows(const at::Tensor& table);
  /// Updates the given rows of the table. Call it before each forward, with the token ids that the
  /// forward looks up. Call `zero_grad` before it or after `step`, never between this call and
  /// `step`. If one backward follows several forwards, pass the ids of all before the first.
  /// @param ids  integers of any shape, on the CPU
  /// @throws c10::ValueError  without `defer_rows`
  /// @throws c10::IndexError  for an id outside the table
  void read_rows(const at::Tensor& ids);
  /// Updates all rows. Call it before other code reads or writes the table. Does nothing without
  /// `defer_rows`.
  void catch_up() const override;

 protected:
  void update(const torch::optim::OptimizerOptions& options,
              const std::vector<ParameterUpdate>& updates,
              const GradientFactors& factors) override;
  detail::DeferredRows* deferred_rows(const at::Tensor& parameter) override;

 private:
  std::shared_ptr<detail::DeferredRows> deferred_;
};

}  // namespace mezzo
