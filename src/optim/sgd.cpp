#include "mezzo/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

namespace mezzo {

SGD::SGD(std::vector<ParamGroup> groups, SGDOptions options)
    : Optimizer(std::move(groups), options.lr()), options_(options) {
  TORCH_CHECK_VALUE(options.lr() >= 0, "SGD: lr must not be negative, got ", options.lr());
  TORCH_CHECK_VALUE(options.momentum() >= 0, "SGD: momentum must not be negative, got ", options.momentum());
  TORCH_CHECK_VALUE(!options.nesterov() || options.momentum() > 0, "SGD: nesterov needs a momentum above 0");
}

std::vector<std::string_view> SGD::slot_names() const {
  return options_.momentum() == 0 ? std::vector<std::string_view>{} : std::vector<std::string_view>{"momentum_buffer"};
}

at::Tensor SGD::initial_slot(size_t, const at::Tensor& param) const { return at::zeros_like(param); }

void SGD::update(Bucket& bucket, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  const auto buffers = options_.momentum() == 0 ? std::vector<at::Tensor>{} : bucket.slots[0];
  // A buffer of zeros makes the first step like any other, also after a skipped one.
  at::_fused_sgd_(bucket.params, bucket.grads, buffers, bucket.weight_decay, options_.momentum(), lr(),
                  /*dampening=*/0, options_.nesterov(), /*maximize=*/false, /*is_first_step=*/false,
                  grad_scale.defined() ? std::optional(grad_scale) : std::nullopt,
                  found_inf.defined() ? std::optional(found_inf) : std::nullopt);
}

}  // namespace mezzo
