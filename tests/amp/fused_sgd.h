#pragma once

#include <ATen/ops/_fused_sgd.h>
#include <mezzo/optim/amp_optimizer.h>

#include <string>
#include <utility>
#include <vector>

namespace mezzo {

/// The smallest optimizer that applies the scale itself: LibTorch's fused SGD without momentum.
class FusedSgd : public AmpOptimizer {
 public:
  FusedSgd(std::vector<at::Tensor> parameters, double lr) : parameters_(std::move(parameters)), lr_(lr) {}

  std::string name() const override { return "FusedSgd"; }
  void visit_parameters(const ParameterVisitor& visit) override {
    for (at::Tensor& parameter : parameters_) {
      visit(parameter);
    }
  }
  at::Tensor step(const Closure& closure) override {
    at::Tensor loss = closure ? closure() : at::Tensor();
    run(std::nullopt, std::nullopt);
    return loss;
  }
  bool applies_scale_itself() const override { return true; }
  at::Tensor step_scaled(const std::optional<at::Tensor>& grad_scale, const at::Tensor& found_inf) override {
    run(grad_scale, found_inf);
    return {};
  }

 private:
  void run(const std::optional<at::Tensor>& grad_scale, const std::optional<at::Tensor>& found_inf) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) {
      if (parameter.grad().defined()) {
        parameters.push_back(parameter);
        gradients.push_back(parameter.grad());
      }
    }
    if (parameters.empty()) {
      return;
    }
    at::_fused_sgd_(parameters, gradients, /*momentum_buffer_list=*/{}, /*weight_decay=*/0.0, /*momentum=*/0.0, lr_,
                    /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false, grad_scale,
                    found_inf);
  }

  std::vector<at::Tensor> parameters_;
  double lr_;
};

}  // namespace mezzo
