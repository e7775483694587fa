#pragma once

#include <gtest/gtest.h>
#include <mezzo/amp/grad_scaler.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "amp/fused_sgd.h"
#include "not_finite.h"

/// Common parts of the tests of a GradScaler.
namespace mezzo {

/// The message of the `Error` that `call` throws; empty, with a failure, if none.
template <class Error = c10::Error>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "nothing thrown";
  return {};
}

inline torch::Tensor weights(int64_t size = 2) { return torch::ones({size}, torch::requires_grad()); }

/// Gives `weight` this gradient, scaled, by a backward pass.
inline void backward(GradScaler& scaler, const torch::Tensor& weight, const std::vector<float>& gradient) {
  scaler.scale((weight * torch::tensor(gradient).to(weight.device())).sum()).backward();
}

/// Gives `weight` exactly this gradient, as if a scaled backward had; the
/// scaler has its scale then.
inline void set_gradient(GradScaler& scaler, torch::Tensor& weight, const torch::Tensor& gradient) {
  scaler.scale(torch::zeros({}));
  weight.mutable_grad() = gradient;
}

inline torch::optim::SGD sgd_for(std::vector<torch::Tensor> parameters, double lr = 0.5) {
  return torch::optim::SGD(std::move(parameters), lr);
}

/// SGD of a float32 master, if there is one, and its half copy.
class MasteredSgd : public FusedSgd {
 public:
  MasteredSgd(const torch::Tensor& half, torch::Tensor master, double lr)
      : FusedSgd({master.defined() ? master : half}, lr), half_(half), master_(std::move(master)), lr_(lr) {}

  torch::Tensor half_copy_of(const torch::Tensor& /*parameter*/) const override {
    return master_.defined() ? half_ : torch::Tensor();
  }
  torch::Tensor step_scaled(const std::optional<torch::Tensor>& grad_scale, const torch::Tensor& found_inf) override {
    const torch::NoGradGuard no_grad;
    if (found_inf.item<float>() == 0) {
      const auto gradient = (has_moved() ? master_ : half_).grad().to(torch::kFloat);
      master_ -= lr_ * (grad_scale ? gradient / *grad_scale : gradient);
      half_.copy_(master_);
    }
    return {};
  }

 private:
  bool has_moved() const { return master_.defined() && master_.grad().defined(); }

  torch::Tensor half_, master_;
  double lr_;
};

/// An optimizer that updates nothing from its half gradients, as one whose
/// parameters another process updates.
class HalfSgd : public MasteredSgd {
 public:
  explicit HalfSgd(const torch::Tensor& half) : MasteredSgd(half, {}, 0.5) {}
  bool allows_half_gradients() const override { return true; }
  torch::Tensor step_scaled(const std::optional<torch::Tensor>&, const torch::Tensor&) override { return {}; }
};

}  // namespace mezzo
