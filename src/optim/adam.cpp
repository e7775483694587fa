#include "mezzo/optim/adam.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/optimizer_kernels.h"
#include "optim/deferred_rows.h"

namespace mezzo {
namespace {

template <class Options>
kernels::AdamSettings adam_settings(const torch::optim::OptimizerOptions& options, bool decoupled, bool maximize) {
  const auto& of_torch = static_cast<const Options&>(options);
  const auto [beta1, beta2] = of_torch.betas();
  return {.beta1 = beta1,
          .beta2 = beta2,
          .eps = of_torch.eps(),
          .amsgrad = of_torch.amsgrad(),
          .decoupled = decoupled,
          .maximize = maximize};
}

}  // namespace

void Adam::update(const torch::optim::OptimizerOptions& options,
                  const std::vector<ParameterUpdate>& updates,
                  const GradientFactors& factors) {
  kernels::adam(updates, adam_settings<torch::optim::AdamOptions>(options, /*decoupled=*/false, maximizes()), factors);
}

void AdamW::update(const torch::optim::OptimizerOptions& options,
                   const std::vector<ParameterUpdate>& updates,
                   const GradientFactors& factors) {
  const auto settings = adam_settings<torch::optim::AdamWOptions>(options, /*decoupled=*/true, maximizes());
  deferred_ ? deferred_->update(updates, settings, factors) : kernels::adam(updates, settings, factors);
}

void AdamW::defer_rows(const at::Tensor& table) {
  TORCH_CHECK_VALUE(!deferred_, "AdamW: defer_rows() was called before; one table can be deferred");
  const torch::optim::OptimizerParamGroup* group = nullptr;
  for (const auto& each : param_groups_) {
    if (std::ranges::any_of(each.params(), [&](const at::Tensor& parameter) { return parameter.is_same(table); })) {
      group = &each;
    }
  }
  TORCH_CHECK_VALUE(group != nullptr, "AdamW: defer_rows() got a tensor that is not a parameter of this optimizer");
  TORCH_CHECK_VALUE(table.dim() == 2 && table.scalar_type() == at::kFloat && table.is_contiguous() && table.is_cpu() &&
                        !half_copy_of(table).defined(),
                    "AdamW: defer_rows() needs a contiguous float32 matrix on the CPU, without a half copy, got ",
                    table.toString(), " of sizes ", table.sizes());
  TORCH_CHECK_VALUE(!static_cast<const torch::optim::AdamWOptions&>(group->options()).amsgrad() && !maximizes() &&
                        !rounds_stochastically(),
                    "AdamW: defer_rows() works without amsgrad, maximize and stochastic rounding");
  deferred_ = std::make_shared<detail::DeferredRows>(table);
}

void AdamW::read_rows(const at::Tensor& ids) {
  TORCH_CHECK_VALUE(deferred_, "AdamW: read_rows() needs defer_rows() before");
  deferred_->read(ids);
}

void AdamW::catch_up() const {
  if (deferred_) {
    deferred_->catch_up();
  }
}

detail::DeferredRows* AdamW::deferred_rows(const at::Tensor& parameter) {
  return deferred_ && deferred_->table().is_same(parameter) ? deferred_.get() : nullptr;
}

}  // namespace mezzo
