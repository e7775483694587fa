#include "kernels/optimizer_kernels.h"

#include <ATen/ATen.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "kernels/device_scalars.h"
#include "kernels/dtypes.h"
#include "kernels/operator.h"
#include "kernels/reference/random_words.h"

namespace mezzo::kernels::reference {
namespace {

at::ScalarType compute_dtype(const ParameterUpdate& update) {
  const auto dtype = update.param.scalar_type();
  return is_half(dtype) ? at::kFloat : dtype;
}

void multiply(std::vector<at::Tensor>& tensors, const at::Tensor& factor) {
  if (factor.defined()) {
    tensors = at::_foreach_mul(tensors, factor);
  }
}

/// Writes `values` into the parameter, and both into the shadow. Where the step was skipped
/// they are the same as before.
void store(const ParameterUpdate& update, const at::Tensor& values) {
  if (!values.is_alias_of(update.param)) {
    const bool stochastic = update.rounding_seed && update.param.scalar_type() == at::kBFloat16;
    update.param.copy_(stochastic ? round_stochastically(values, update.step, rounding_key_seed(update), update.index)
                                  : values);
  }
  if (update.shadow.defined()) {
    update.shadow.copy_(update.param);
  }
}

/// Its elements in order, and strides that say so: fused kernels take tensors whose strides are alike, which those of a
/// contiguous one need not be where a size is 0 or 1.
at::Tensor in_order(const at::Tensor& tensor) {
  const auto dense = tensor.contiguous();
  const auto strides = c10::contiguous_strides(dense.sizes());
  return dense.strides() == strides ? dense : dense.as_strided(dense.sizes(), strides);
}

/// Updates that one fused kernel takes: of one dtype, learning rate and weight decay.
struct Batch {
  std::vector<const ParameterUpdate*> updates;
  std::vector<at::Tensor> params, gradients, steps;
  std::vector<std::vector<at::Tensor>> slots;
  double lr, weight_decay;
};

std::vector<Batch> batches_of(const ParameterUpdates& updates, const GradientFactors& factors) {
  std::map<std::tuple<at::ScalarType, double, double>, Batch> batches;
  for (const ParameterUpdate& update : updates) {
    const auto dtype = compute_dtype(update);
    Batch& batch = batches[{dtype, update.lr, update.weight_decay}];
    batch.updates.push_back(&update);
    batch.lr = update.lr;
    batch.weight_decay = update.weight_decay;
    // The parameter itself, unless half or strided.
    batch.params.push_back(in_order(update.param.to(dtype)));
    batch.gradients.push_back(in_order(update.gradient.to(dtype)));
    if (update.step.defined()) {
      batch.steps.push_back(update.step);
    }
    batch.slots.resize(update.slots.size());
    for (size_t slot = 0; slot < update.slots.size(); ++slot) {
      batch.slots[slot].push_back(update.slots[slot]);
    }
  }
  std::vector<Batch> result;
  for (auto& [key, batch] : batches) {
    multiply(batch.gradients, factors.inv_scale);
    multiply(batch.gradients, factors.clip);
    result.push_back(std::move(batch));
  }
  return result;
}

/// Counts the step, as the kernels expect, runs, and takes the count back
/// where the step was skipped.
template <class Kernel>
void run(const ParameterUpdates& updates, const GradientFactors& factors, Kernel&& kernel) {
  for (Batch& batch : batches_of(updates, factors)) {
    if (!batch.steps.empty()) {
      at::_foreach_add_(batch.steps, 1);
    }
    kernel(batch);
    if (!batch.steps.empty() && factors.found_inf.defined()) {
      at::_foreach_sub_(batch.steps, std::vector<at::Tensor>(batch.steps.size(), factors.found_inf));
    }
    for (size_t i = 0; i < batch.updates.size(); ++i) {
      store(*batch.updates[i], batch.params[i]);
    }
  }
}

/// Stores float32 moments on the CPU that became denormal as 0, where the step counted.
void flush_denormals(Batch& batch, const GradientFactors& factors) {
  const double largest_denormal = std::nextafter(std::numeric_limits<float>::min(), 0.0f);
  const auto& skip = factors.found_inf;
  if (!batch.params.front().is_cpu() || (skip.defined() && skip.item<float>() != 0)) {
    return;
  }
  for (std::vector<at::Tensor>& moments : batch.slots) {
    for (at::Tensor& moment : moments) {
      if (moment.scalar_type() == at::kFloat) {
        at::hardshrink_out(moment, moment, largest_denormal);
      }
    }
  }
}

/// Calls `kernel(lr)` with the learning rate of a batch: a number, or a tensor where it lies on a
/// device. LibTorch's fused kernels for CUDA read it in float32, those for the CPU as it is.
template <class Kernel>
void with_lr(const Batch& batch, const GradientFactors& factors, const Kernel& kernel) {
  if (!factors.lr.defined()) {
    return kernel(batch.lr);
  }
  const auto lr = factors.lr * batch.lr;
  kernel(lr.is_cuda() ? lr.to(at::kFloat) : lr);
}

/// `updated` where the step counts, else `old`.
at::Tensor unless(const at::Tensor& skip, const at::Tensor& old, const at::Tensor& updated) {
  return skip.defined() ? at::where(skip.to(at::kBool), old, updated) : updated;
}

}  // namespace

void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors) {
  const auto kernel = [&](auto&&... arguments) {
    settings.decoupled ? at::_fused_adamw_(arguments...) : at::_fused_adam_(arguments...);
  };
  run(updates, factors, [&](Batch& batch) {
    const auto largest = settings.amsgrad ? at::TensorList(batch.slots[2]) : at::TensorList();
    with_lr(batch, factors, [&](const auto& lr) {
      kernel(batch.params, batch.gradients, batch.slots[0], batch.slots[1], largest, batch.steps, lr, settings.beta1,
             settings.beta2, batch.weight_decay, settings.eps, settings.amsgrad, settings.maximize,
             /*grad_scale=*/std::nullopt, if_defined(factors.found_inf));
    });
    if (flushes_denormals(settings)) {
      flush_denormals(batch, factors);
    }
  });
}

void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors) {
  run(updates, factors, [&](Batch& batch) {
    const auto buffers = settings.momentum == 0 ? std::vector<at::Tensor>{} : batch.slots[0];
    // A buffer of zeros makes the first step like any other, also after a skipped one.
    with_lr(batch, factors, [&](const auto& lr) {
      at::_fused_sgd_(batch.params, batch.gradients, buffers, batch.weight_decay, settings.momentum, lr,
                      settings.dampening, settings.nesterov, settings.maximize, /*is_first_step=*/false,
                      /*grad_scale=*/std::nullopt, if_defined(factors.found_inf));
    });
    flush_denormals(batch, factors);
  });
}

void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& factors) {
  run(updates, factors, [&](Batch& batch) {
    const auto& skip = factors.found_inf;
    for (size_t i = 0; i < batch.params.size(); ++i) {
      const at::Tensor &param = batch.params[i], &count = batch.steps[i];
      const auto grad = settings.maximize ? -batch.gradients[i] : batch.gradients[i];
      at::Tensor &exp_avg = batch.slots[0][i], &exp_avg_sq = batch.slots[1][i];
      const auto mean = exp_avg * settings.beta1 + grad * (1 - settings.beta1);
      const auto square = exp_avg_sq * settings.beta2 + grad * grad * (1 - settings.beta2);
      const auto corrected_mean = mean / (1 - at::pow(settings.beta1, count));
      const auto corrected_square = square / (1 - at::pow(settings.beta2, count));
      const auto direction = corrected_mean / (corrected_square.sqrt() + settings.eps) + param * batch.weight_decay;
      const auto param_norm = param.norm(), direction_norm = direction.norm();
      const auto trust = at::where((param_norm > 0).logical_and(direction_norm > 0), param_norm / direction_norm,
                                   at::ones_like(param_norm));
      const auto step_size =
          factors.lr.defined() ? trust * (factors.lr * batch.lr).to(trust.scalar_type()) : trust * batch.lr;
      param.copy_(unless(skip, param, param - direction * step_size));
      exp_avg.copy_(unless(skip, exp_avg, mean));
      exp_avg_sq.copy_(unless(skip, exp_avg_sq, square));
    }
  });
}

GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients,
                                    const at::Tensor& scale,
                                    double max_norm) {
  const auto wide = gradients.front().is_mps() ? at::kFloat : at::kDouble;  // MPS has no float64
  auto norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2, wide)), 2);
  const auto inv_scale = scale.defined() ? inverse_of(scale) : at::ones({}, norm.options().dtype(at::kFloat));
  norm = norm * inv_scale.to(wide);
  const auto is_double = [](const at::Tensor& gradient) { return gradient.scalar_type() == at::kDouble; };
  const auto rounded = norm.to(std::ranges::any_of(gradients, is_double) ? at::kDouble : at::kFloat);
  auto is_finite = rounded.isfinite();
  if (scale.defined()) {
    is_finite = is_finite.logical_and((scale * inv_scale).isfinite());
  }
  return {rounded, is_finite.logical_not().to(at::kFloat), norm.square(), inv_scale, clip_factor(rounded, max_norm)};
}

at::Tensor round_stochastically(const at::Tensor& values, const at::Tensor& step, uint64_t seed, uint32_t site) {
  const int64_t count = values.numel();
  const auto words = random_words((count + 7) / 8, step, seed, site);
  const auto draws = at::stack({words.bitwise_and(0xFFFF), words.bitwise_right_shift(16)}, /*dim=*/1).flatten();
  const auto bits = values.contiguous().view(at::kInt);
  const auto rounded = (bits + draws.narrow(0, 0, count).view(values.sizes()).to(at::kInt)).bitwise_and(-0x10000);
  return at::where(values.isnan(), values, rounded.view(at::kFloat)).to(at::kBFloat16);
}

}  // namespace mezzo::kernels::reference
