#include "mezzo/optim/lamb.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

namespace mezzo {
namespace {

enum Slot : size_t { kStep, kExpAvg, kExpAvgSq };

/// `updated` where the step counts, else `old`: decided on the device.
void assign_unless(const at::Tensor& skip, at::Tensor& old, const at::Tensor& updated) {
  old.copy_(skip.defined() ? at::where(skip.to(at::kBool), old, updated) : updated);
}

}  // namespace

LAMB::LAMB(std::vector<ParamGroup> groups, LAMBOptions options)
    : Optimizer(std::move(groups), options.lr()), options_(options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK_VALUE(options.lr() >= 0, "LAMB: lr must not be negative, got ", options.lr());
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "LAMB: betas must be in [0, 1), got ", beta1,
                    " and ", beta2);
  TORCH_CHECK_VALUE(options.eps() >= 0, "LAMB: eps must not be negative, got ", options.eps());
}

at::Tensor LAMB::initial_slot(size_t slot, const at::Tensor& param) const {
  return slot == kStep ? at::zeros({}, at::TensorOptions(at::kFloat).device(param.device())) : at::zeros_like(param);
}

void LAMB::update(Bucket& bucket, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  const auto [beta1, beta2] = options_.betas();
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    at::Tensor &param = bucket.params[i], &step = bucket.slots[kStep][i];
    at::Tensor &exp_avg = bucket.slots[kExpAvg][i], &exp_avg_sq = bucket.slots[kExpAvgSq][i];
    const auto grad = grad_scale.defined() ? bucket.grads[i] / grad_scale : bucket.grads[i];

    const auto count = step + 1;
    const auto mean = exp_avg * beta1 + grad * (1 - beta1);
    const auto square = exp_avg_sq * beta2 + grad * grad * (1 - beta2);
    const auto corrected_mean = mean / (1 - at::pow(beta1, count));
    const auto corrected_square = square / (1 - at::pow(beta2, count));
    const auto direction = corrected_mean / (corrected_square.sqrt() + options_.eps()) + param * bucket.weight_decay;
    const auto param_norm = param.norm(), direction_norm = direction.norm();
    const auto trust = at::where((param_norm > 0).logical_and(direction_norm > 0), param_norm / direction_norm,
                                 at::ones_like(param_norm));

    assign_unless(found_inf, param, param - direction * (trust * lr()));
    assign_unless(found_inf, exp_avg, mean);
    assign_unless(found_inf, exp_avg_sq, square);
    assign_unless(found_inf, step, count);
  }
}

}  // namespace mezzo
