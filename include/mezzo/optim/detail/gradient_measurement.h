#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <optional>
#include <utility>

#include "mezzo/optim/detail/gradient_statistics.h"

namespace mezzo::detail {

/// Results before a step: statistics, and factors of the gradients. An undefined factor is 1.
struct MeasuredGradients {
  GradientStatistics statistics;
  at::Tensor inv_scale, clip;
};

/// Measures the gradients of an optimizer once, for the check of a scaler and for the step after
/// it.
class GradientMeasurement {
 public:
  /// @param max_grad_norm  0: a step does not measure
  explicit GradientMeasurement(double max_grad_norm) : max_grad_norm_(max_grad_norm) {}

  void register_hook(GradientStatisticsHook hook) { hook_ = std::move(hook); }

  /// Called before a step of true gradients.
  /// @throws c10::ValueError  for a sparse gradient that must be measured, with the parameter's
  ///     name
  MeasuredGradients before_step(torch::optim::Optimizer& optimizer);
  /// Called before a step, with the arguments of AmpScalingOptimizer::step_scaled.
  MeasuredGradients before_scaled_step(torch::optim::Optimizer& optimizer,
                                       const std::optional<at::Tensor>& grad_scale,
                                       const at::Tensor& found_inf);
  /// As AmpScalingOptimizer::check_gradients.
  /// @param takes_sparse  whether the optimizer accepts sparse gradients, which are not measured
  std::optional<at::Tensor> check(torch::optim::Optimizer& optimizer,
                                  const std::optional<at::Tensor>& scale,
                                  bool takes_sparse);

 private:
  /// The result of `check`, which divided by `scale`.
  struct Checked {
    std::optional<at::Tensor> scale;
    MeasuredGradients measured;
  };

  MeasuredGradients measure(torch::optim::Optimizer& optimizer,
                            const std::optional<at::Tensor>& scale,
                            const at::Tensor& found_inf,
                            bool measures) const;

  double max_grad_norm_;
  GradientStatisticsHook hook_;
  std::optional<Checked> checked_;  // for the step that follows
};

}  // namespace mezzo::detail
