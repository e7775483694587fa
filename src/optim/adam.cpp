#include "mezzo/optim/adam.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

namespace mezzo {
namespace {

enum Slot : size_t { kStep, kExpAvg, kExpAvgSq };

std::optional<at::Tensor> optional_tensor(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// The kernels expect the step already counted, and leave a skipped one to be taken back.
template <class Kernel>
void count_and_run(std::vector<at::Tensor>& steps, const at::Tensor& found_inf, Kernel&& kernel) {
  at::_foreach_add_(steps, 1);
  kernel();
  if (found_inf.defined()) {
    at::_foreach_sub_(steps, std::vector<at::Tensor>(steps.size(), found_inf));
  }
}

}  // namespace

Adam::Adam(std::vector<ParamGroup> groups, AdamOptions options)
    : Optimizer(std::move(groups), options.lr()), options_(options) {
  const auto [beta1, beta2] = options.betas();
  TORCH_CHECK_VALUE(options.lr() >= 0, "Adam: lr must not be negative, got ", options.lr());
  TORCH_CHECK_VALUE(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "Adam: betas must be in [0, 1), got ", beta1,
                    " and ", beta2);
  TORCH_CHECK_VALUE(options.eps() >= 0, "Adam: eps must not be negative, got ", options.eps());
}

at::Tensor Adam::initial_slot(size_t slot, const at::Tensor& param) const {
  return slot == kStep ? at::zeros({}, at::TensorOptions(at::kFloat).device(param.device())) : at::zeros_like(param);
}

void Adam::update(Bucket& bucket, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  count_and_run(bucket.slots[kStep], found_inf, [&] {
    at::_fused_adam_(bucket.params, bucket.grads, bucket.slots[kExpAvg], bucket.slots[kExpAvgSq], {},
                     bucket.slots[kStep], lr(), options_.betas().first, options_.betas().second, bucket.weight_decay,
                     options_.eps(), /*amsgrad=*/false, /*maximize=*/false, optional_tensor(grad_scale),
                     optional_tensor(found_inf));
  });
}

void AdamW::update(Bucket& bucket, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  count_and_run(bucket.slots[kStep], found_inf, [&] {
    at::_fused_adamw_(bucket.params, bucket.grads, bucket.slots[kExpAvg], bucket.slots[kExpAvgSq], {},
                      bucket.slots[kStep], lr(), options().betas().first, options().betas().second, bucket.weight_decay,
                      options().eps(), /*amsgrad=*/false, /*maximize=*/false, optional_tensor(grad_scale),
                      optional_tensor(found_inf));
  });
}

}  // namespace mezzo
