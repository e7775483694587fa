#include "mezzo/amp/master_weights.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <utility>

namespace mezzo {

MasterWeights::MasterWeights(std::vector<NamedParameter> model, c10::ScalarType dtype) : model_(std::move(model)) {
  TORCH_CHECK_VALUE(dtype == at::kHalf || dtype == at::kBFloat16,
                    "MasterWeights: dtype must be kHalf or kBFloat16, got ", dtype);
  for (const auto& [name, tensor] : model_) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == at::kFloat, "MasterWeights: parameter ", name, " is ",
                      tensor.scalar_type(), "; masters are made from float32 weights, before the model is cast");
  }
  at::NoGradGuard no_grad;
  for (auto& [name, tensor] : model_) {
    masters_.push_back({name, tensor.detach().clone().requires_grad_()});
    tensor.set_data(tensor.to(dtype));
  }
}

void MasterWeights::accumulate_gradients() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < model_.size(); ++i) {
    at::Tensor& gradient = model_[i].tensor.mutable_grad();
    if (!gradient.defined()) {
      continue;
    }
    at::Tensor& sum = masters_[i].tensor.mutable_grad();
    if (sum.defined()) {
      sum.add_(gradient);
    } else {
      sum = gradient.to(at::kFloat);
    }
    gradient.reset();
  }
}

void MasterWeights::copy_to_model() {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < model_.size(); ++i) {
    model_[i].tensor.copy_(masters_[i].tensor);
  }
}

}  // namespace mezzo
