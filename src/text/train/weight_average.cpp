#include "text/train/weight_average.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>

namespace mezzo::text {

WeightAverage::WeightAverage(std::vector<NamedParameter> parameters, double decay) : decay_(decay) {
  for (NamedParameter& parameter : parameters) {
    if (parameter.tensor.requires_grad()) {
      averages_.push_back(parameter.tensor.detach().clone());
      parameters_.push_back(std::move(parameter));
    }
  }
  steps_taken_ = at::zeros({}, averages_.front().options().dtype(at::kLong));
}

void WeightAverage::update(const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  const auto is_taken = found_inf == 0;
  steps_taken_.add_(is_taken);
  const auto weight = (9 / (steps_taken_ + 10).to(at::kFloat)).clamp_min(1 - decay_) * is_taken;
  for (size_t i = 0; i < averages_.size(); ++i) {
    averages_[i].lerp_(parameters_[i].tensor.detach(), weight);
  }
}

void WeightAverage::swap() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < averages_.size(); ++i) {
    const at::Tensor kept = parameters_[i].tensor.detach().clone();
    parameters_[i].tensor.copy_(averages_[i]);
    averages_[i].copy_(kept);
    if (parameters_[i].half_copy.defined()) {
      parameters_[i].half_copy.detach().copy_(parameters_[i].tensor);
    }
  }
  is_in_model_ = !is_in_model_;
}

std::map<std::string, at::Tensor> WeightAverage::named(bool of_model) const {
  std::map<std::string, at::Tensor> tensors;
  for (size_t i = 0; i < averages_.size(); ++i) {
    tensors.emplace(parameters_[i].name, of_model ? parameters_[i].tensor.detach() : averages_[i]);
  }
  return tensors;
}

void WeightAverage::load(const std::map<std::string, at::Tensor>& averages, int64_t steps_taken) {
  const at::NoGradGuard no_grad;
  steps_taken_.fill_(steps_taken);
  for (size_t i = 0; i < averages_.size(); ++i) {
    const auto found = averages.find(parameters_[i].name);
    TORCH_CHECK_VALUE(found != averages.end() && found->second.sizes() == averages_[i].sizes(),
                      "--resume: the checkpoint has no average of ", parameters_[i].name, " of shape ",
                      averages_[i].sizes(), "; it is of another model");
    averages_[i].copy_(found->second);
  }
}

}  // namespace mezzo::text
