#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "mezzo/optim/named_parameter.h"

namespace mezzo::text {

/// An exponential moving average of a model's weights: after each step that is taken, average = decay · average +
/// (1 − decay) · weight, which begins with the weights that training begins with.
/// @see torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn (Python), which begins with those after its first
///   update.
class WeightAverage {
 public:
  /// @param parameters  float32; those that need no gradient stay as they are.
  WeightAverage(std::vector<NamedParameter> parameters, double decay);

  /// Takes the weights in. Never waits for the device; may be recorded into a graph.
  /// @param found_inf  0-dim on the device: where it is not 0, the step was skipped, and nothing changes.
  void update(const at::Tensor& found_inf);

  /// The model gets the averages, and its weights are kept here; the next time, back to the same bits.
  void swap();

  /// By the parameters' names, wherever they are.
  std::map<std::string, at::Tensor> averages() const { return named(/*of_model=*/is_in_model_); }
  std::map<std::string, at::Tensor> weights() const { return named(/*of_model=*/!is_in_model_); }
  /// Takes over averages. @throws c10::ValueError  naming one that is missing, or of another shape.
  void load(const std::map<std::string, at::Tensor>& averages);

 private:
  std::map<std::string, at::Tensor> named(bool of_model) const;

  std::vector<NamedParameter> parameters_;
  std::vector<at::Tensor> averages_;
  double decay_;
  bool is_in_model_ = false;
};

}  // namespace mezzo::text
