#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "mezzo/optim/named_parameter.h"

namespace mezzo::text {

/// An exponential moving average of a model's weights. After each taken step t, from 1, average = d · average + (1 − d)
/// · weight. Here d = min(decay, (1 + t) / (10 + t)). It begins with the weights that training begins with, which the
/// warmup lets go: 0.999 alone keeps 88 % of them for 130 steps.
/// @see torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn (Python), which has no warmup and begins with the
///   weights after its first update; tf.train.ExponentialMovingAverage with num_updates
class WeightAverage {
 public:
  /// @param parameters  float32; parameters without gradient stay as they are.
  WeightAverage(std::vector<NamedParameter> parameters, double decay);

  /// Takes the weights in. Never waits for the device; may be recorded into a graph.
  /// @param found_inf  0-dim on the device: if it is not 0, the step was skipped, and nothing changes.
  void update(const at::Tensor& found_inf);

  /// The model gets the averages, and its weights are kept here; the next time, back to the same bits.
  void swap();

  /// By the parameters' names, wherever they are.
  std::map<std::string, at::Tensor> averages() const { return named(/*of_model=*/is_in_model_); }
  std::map<std::string, at::Tensor> weights() const { return named(/*of_model=*/!is_in_model_); }
  /// Takes over averages.
  /// @param steps_taken  that they have taken in.
  /// @throws c10::ValueError  naming one that is missing, or of another shape.
  void load(const std::map<std::string, at::Tensor>& averages, int64_t steps_taken);

 private:
  std::map<std::string, at::Tensor> named(bool of_model) const;

  std::vector<NamedParameter> parameters_;
  std::vector<at::Tensor> averages_;
  at::Tensor steps_taken_;  // on the device, which knows first whether a step was skipped: 0-dim int64
  double decay_;
  bool is_in_model_ = false;
};

}  // namespace mezzo::text
