#include <ATen/ATen.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "kernels/dense_layout.h"
#include "kernels/device_kernels.h"
#include "kernels/device_scalars.h"
#include "kernels/dtypes.h"
#include "kernels/operator.h"
#include "kernels/reference/gradient_norms.h"
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

/// Tensors of one update for the fused operations, which take elements in memory order if all
/// strides are equal. Contiguous tensors are unchanged. Others become vectors, in the order of a
/// dense parameter, or else of indices.
struct Layout {
  explicit Layout(const ParameterUpdate& update)
      : param(update.param), is_dense(update.param.is_non_overlapping_and_dense()) {
    const auto strides = c10::contiguous_strides(param.sizes());
    const auto fits = [&](const at::Tensor& tensor) { return tensor.strides() == strides; };
    is_plain = fits(param) && fits(update.gradient) && std::ranges::all_of(update.slots, fits);
  }

  /// The memory of `tensor` itself if possible.
  at::Tensor flat(const at::Tensor& tensor) const {
    if (is_plain) {
      return tensor;
    }
    return (is_dense ? in_layout_of(param, tensor) : tensor.contiguous()).as_strided({tensor.numel()}, {1});
  }

  /// Writes `values`, a result of `flat`, to the tensor that was flattened.
  void write(const at::Tensor& values, const at::Tensor& to) const {
    if (!values.is_alias_of(to)) {
      to.copy_(shaped(values));
    }
  }

  /// `values` with the parameter's sizes.
  at::Tensor shaped(const at::Tensor& values) const {
    if (is_plain) {
      return values;
    }
    return is_dense ? values.as_strided(param.sizes(), param.strides()) : values.view(param.sizes());
  }

  at::Tensor param;
  bool is_dense, is_plain;
};

/// Writes `values` into the parameter, and both into the half copy. If the step was skipped they are the same as
/// before.
void store(const ParameterUpdate& update, const at::Tensor& values, const Layout& layout) {
  const bool stochastic = update.rounding_seed && update.param.scalar_type() == at::kBFloat16;
  layout.write(stochastic ? round_stochastically(values, update.step, rounding_key_seed(update), update.index) : values,
               update.param);
  if (update.half_copy.defined()) {
    update.half_copy.copy_(update.param);
  }
}

/// Updates that one fused kernel takes: of one dtype, learning rate and weight decay.
struct Batch {
  std::vector<const ParameterUpdate*> updates;
  std::vector<Layout> layouts;
  std::vector<at::Tensor> params, gradients, steps;
  std::vector<std::vector<at::Tensor>> slots;
  double lr, weight_decay;
};

std::vector<Batch> batches_of(const ParameterUpdates& updates, const GradientFactors& factors, bool maximize) {
  std::map<std::tuple<at::ScalarType, double, double>, Batch> batches;
  for (const ParameterUpdate& update : updates) {
    const auto dtype = compute_dtype(update);
    Batch& batch = batches[{dtype, update.lr, update.weight_decay}];
    batch.updates.push_back(&update);
    batch.lr = update.lr;
    batch.weight_decay = update.weight_decay;
    const Layout& layout = batch.layouts.emplace_back(update);
    batch.params.push_back(layout.flat(update.param.to(dtype)));
    const auto gradient = layout.flat(update.gradient.to(dtype));
    batch.gradients.push_back(maximize ? gradient.neg() : gradient);
    if (update.step.defined()) {
      batch.steps.push_back(update.step);
    }
    batch.slots.resize(update.slots.size());
    for (size_t slot = 0; slot < update.slots.size(); ++slot) {
      batch.slots[slot].push_back(layout.flat(update.slots[slot]));
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

/// Counts the step, as the kernels expect, runs, and takes the count back if the step was skipped.
template <class Kernel>
void run(const ParameterUpdates& updates, const GradientFactors& factors, bool maximize, Kernel&& kernel) {
  for (Batch& batch : batches_of(updates, factors, maximize)) {
    if (!batch.steps.empty()) {
      at::_foreach_add_(batch.steps, 1);
    }
    kernel(batch);
    if (!batch.steps.empty() && factors.found_inf.defined()) {
      at::_foreach_sub_(batch.steps, std::vector<at::Tensor>(batch.steps.size(), factors.found_inf));
    }
    for (size_t i = 0; i < batch.updates.size(); ++i) {
      store(*batch.updates[i], batch.params[i], batch.layouts[i]);
      for (size_t slot = 0; slot < batch.slots.size() && !batch.layouts[i].is_plain; ++slot) {
        batch.layouts[i].write(batch.slots[slot][i], batch.updates[i]->slots[slot]);
      }
    }
  }
}

/// Stores float32 moments on the CPU that became denormal as 0, if the step counted.
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

/// Calls `kernel(lr)` with the learning rate of a batch: a number, or a tensor if it lies on a device. LibTorch's fused
/// kernels for CUDA read it in float32, those for the CPU as it is.
template <class Kernel>
void with_lr(const Batch& batch, const GradientFactors& factors, const Kernel& kernel) {
  if (!factors.lr.defined()) {
    return kernel(batch.lr);
  }
  const auto lr = factors.lr * batch.lr;
  kernel(lr.is_cuda() ? lr.to(at::kFloat) : lr);
}

/// The learning rate of a batch, to multiply tensors by.
at::Tensor lr_of(const Batch& batch, const GradientFactors& factors) {
  const at::Tensor& like = batch.params.front();
  return factors.lr.defined() ? (factors.lr * batch.lr).to(like.scalar_type())
                              : at::scalar_tensor(batch.lr, like.options().device(at::kCPU));
}

at::Tensor with_decay(const Batch& batch, size_t i) {
  const at::Tensor& grad = batch.gradients[i];
  return batch.weight_decay == 0 ? grad : grad + batch.params[i] * batch.weight_decay;
}

/// `updated` if the step counts, else `old`.
at::Tensor unless(const at::Tensor& skip, const at::Tensor& old, const at::Tensor& updated) {
  return skip.defined() ? at::where(skip.to(at::kBool), old, updated) : updated;
}

}  // namespace

void adam(const ParameterUpdates& updates, const AdamSettings& settings, const GradientFactors& factors) {
  const auto kernel = [&](auto&&... arguments) {
    settings.decoupled ? at::_fused_adamw_(arguments...) : at::_fused_adam_(arguments...);
  };
  run(updates, factors, settings.maximize, [&](Batch& batch) {
    const auto largest = settings.amsgrad ? at::TensorList(batch.slots[2]) : at::TensorList();
    with_lr(batch, factors, [&](const auto& lr) {
      kernel(batch.params, batch.gradients, batch.slots[0], batch.slots[1], largest, batch.steps, lr, settings.beta1,
             settings.beta2, batch.weight_decay, settings.eps, settings.amsgrad, /*maximize=*/false,
             /*grad_scale=*/std::nullopt, if_defined(factors.found_inf));
    });
    if (flushes_denormals(settings)) {
      flush_denormals(batch, factors);
    }
  });
}

void sgd(const ParameterUpdates& updates, const SgdSettings& settings, const GradientFactors& factors) {
  run(updates, factors, settings.maximize, [&](Batch& batch) {
    const bool dampens = settings.momentum != 0 && settings.dampening != 0;
    const auto buffers = settings.momentum == 0 ? std::vector<at::Tensor>{} : batch.slots[0];
    // A buffer of zeros makes the first step like any other, also after a skipped one.
    if (!dampens) {
      with_lr(batch, factors, [&](const auto& lr) {
        at::_fused_sgd_(batch.params, batch.gradients, buffers, batch.weight_decay, settings.momentum, lr,
                        /*dampening=*/0, settings.nesterov, /*maximize=*/false, /*is_first_step=*/false,
                        /*grad_scale=*/std::nullopt, if_defined(factors.found_inf));
      });
    }
    // Some may be at their first step, which only the device knows; the fused operation has one flag for all.
    for (size_t i = 0; dampens && i < batch.params.size(); ++i) {
      const at::Tensor &param = batch.params[i], &buffer = buffers[i];
      const auto grad = with_decay(batch, i);
      const auto moved =
          buffer * settings.momentum + at::where(batch.steps[i] == 1, grad, grad * (1 - settings.dampening));
      const auto direction = settings.nesterov ? grad + moved * settings.momentum : moved;
      param.copy_(unless(factors.found_inf, param, param - direction * lr_of(batch, factors)));
      buffer.copy_(unless(factors.found_inf, buffer, moved));
    }
    flush_denormals(batch, factors);
  });
}

void rmsprop(const ParameterUpdates& updates, const RmspropSettings& settings, const GradientFactors& factors) {
  run(updates, factors, settings.maximize, [&](Batch& batch) {
    const auto write = [&](const at::Tensor& to, const at::Tensor& values) {
      to.copy_(unless(factors.found_inf, to, values));
    };
    for (size_t i = 0; i < batch.params.size(); ++i) {
      const at::Tensor &param = batch.params[i], &square_avg = batch.slots.front()[i];
      const auto grad = with_decay(batch, i);
      const auto square = square_avg * settings.alpha + grad * grad * (1 - settings.alpha);
      auto variance = square;
      if (settings.centered) {
        const at::Tensor& grad_avg = batch.slots.back()[i];
        const auto mean = at::lerp(grad_avg, grad, 1 - settings.alpha);
        variance = square - mean * mean;
        write(grad_avg, mean);
      }
      auto direction = grad / (variance.sqrt() + settings.eps);
      if (settings.momentum != 0) {
        const at::Tensor& buffer = batch.slots[1][i];
        direction = buffer * settings.momentum + direction;
        write(buffer, direction);
      }
      write(param, param - direction * lr_of(batch, factors));
      write(square_avg, square);
    }
    if (flushes_denormals(settings)) {
      flush_denormals(batch, factors);
    }
  });
}

void lamb(const ParameterUpdates& updates, const LambSettings& settings, const GradientFactors& factors) {
  run(updates, factors, settings.maximize, [&](Batch& batch) {
    const auto& skip = factors.found_inf;
    for (size_t i = 0; i < batch.params.size(); ++i) {
      const at::Tensor &param = batch.params[i], &grad = batch.gradients[i], &count = batch.steps[i];
      at::Tensor &exp_avg = batch.slots[0][i], &exp_avg_sq = batch.slots[1][i];
      const auto mean = exp_avg * settings.beta1 + grad * (1 - settings.beta1);
      const auto square = exp_avg_sq * settings.beta2 + grad * grad * (1 - settings.beta2);
      const auto corrected_mean = mean / (1 - at::pow(settings.beta1, count));
      const auto corrected_square = square / (1 - at::pow(settings.beta2, count));
      const auto direction = corrected_mean / (corrected_square.sqrt() + settings.eps) + param * batch.weight_decay;
      const auto param_norm = param.norm(), direction_norm = direction.norm();
      const auto trust = at::where((param_norm > 0).logical_and(direction_norm > 0), param_norm / direction_norm,
                                   at::ones_like(param_norm));
      param.copy_(unless(skip, param, param - direction * (trust * lr_of(batch, factors))));
      exp_avg.copy_(unless(skip, exp_avg, mean));
      exp_avg_sq.copy_(unless(skip, exp_avg_sq, square));
    }
  });
}

namespace {

/// An orthogonal matrix near `matrix`, by Newton-Schulz iterations in bfloat16.
at::Tensor orthogonalized(const at::Tensor& matrix, const MuonSettings& settings) {
  const auto [a, b, c] = settings.ns_coefficients;
  const bool is_tall = matrix.size(0) > matrix.size(1);
  auto x = matrix.to(at::kBFloat16);
  if (is_tall) {
    x = x.t();
  }
  x = x / x.norm().clamp_min(settings.eps);
  for (int64_t i = 0; i < settings.ns_steps; ++i) {
    const auto gram = x.mm(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1);
  }
  return is_tall ? x.t() : x;
}

}  // namespace

void muon(const ParameterUpdates& updates, const MuonSettings& settings, const GradientFactors& factors) {
  run(updates, factors, /*maximize=*/false, [&](Batch& batch) {
    const auto& skip = factors.found_inf;
    for (size_t i = 0; i < batch.params.size(); ++i) {
      const Layout& layout = batch.layouts[i];
      const auto param = layout.shaped(batch.params[i]), grad = layout.shaped(batch.gradients[i]),
                 buffer = layout.shaped(batch.slots[0][i]);
      const auto moved = at::lerp(buffer, grad, 1 - settings.momentum);
      const auto rows = static_cast<double>(param.size(0)), columns = static_cast<double>(param.size(1));
      const double ratio = settings.matches_rms_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                                      : std::sqrt(std::max(1.0, rows / columns));
      const auto direction =
          orthogonalized(settings.nesterov ? at::lerp(grad, moved, settings.momentum) : moved, settings);
      const auto lr = lr_of(batch, factors);
      const auto decayed = param * (1 - lr * batch.weight_decay);
      param.copy_(unless(skip, param, decayed - direction.to(param.scalar_type()) * (lr * ratio)));
      buffer.copy_(unless(skip, buffer, moved));
    }
  });
}

GradientSummary summarize_gradients(const std::vector<at::Tensor>& gradients,
                                    const at::Tensor& scale,
                                    double max_norm) {
  const auto wide = accumulation_dtype(gradients.front().device());
  auto norm = at::linalg_vector_norm(gradient_norms(gradients, 2, wide), 2);
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
