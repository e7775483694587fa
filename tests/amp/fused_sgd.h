#pragma once

#include <ATen/ops/_fused_sgd.h>
#include <mezzo/optim/detail/amp_scaling_optimizer.h>
#include <torch/optim/sgd.h>

#include <utility>
#include <vector>

namespace mezzo {

/// The smallest optimizer that unscales and skips on the device: LibTorch's fused SGD without momentum.
class FusedSgd : public torch::optim::SGD, public detail::AmpScalingOptimizer {
 public:
  FusedSgd(std::vector<at::Tensor> parameters, double lr) : SGD(std::move(parameters), lr) {}

  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss = closure ? closure() : at::Tensor();
    run(std::nullopt, std::nullopt);
    return loss;
  }
  at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) override {
    run(grad_scale, found_inf);
    return {};
  }

 private:
  void run(const std::optional<at::Tensor>& grad_scale, const std::optional<at::Tensor>& found_inf) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : param_groups()[0].params()) {
      if (parameter.grad().defined()) {
        parameters.push_back(parameter);
        gradients.push_back(parameter.grad());
      }
    }
    if (parameters.empty()) {
      return;
    }
    at::_fused_sgd_(parameters, gradients, /*momentum_buffer_list=*/{}, /*weight_decay=*/0.0, /*momentum=*/0.0,
                    param_groups()[0].options().get_lr(), /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/false, grad_scale, found_inf);
  }
};

}  // namespace mezzo
