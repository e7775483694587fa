#pragma once

#include "mezzo/cpp20.h"

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace mezzo {

/// Options of mezzo's optimizers that LibTorch's lack. They apply to all parameter groups.
struct StepOptions {
  double max_grad_norm = 0;                               ///< clips the total L2 norm; 0: not measured
  std::optional<uint64_t> stochastic_rounding_seed = {};  ///< nullopt: rounds to nearest
  bool maximize = false;                                  ///< steps along the gradient
};

namespace detail {

/// Checks a number as PyTorch does, with PyTorch's message, such as "Invalid learning rate: -1".
/// @param name  of the option: lr, betas, eps, weight_decay, momentum, dampening, alpha
/// @param where  the start of the message
/// @throws c10::ValueError  for a number out of its range
void check_option(std::string_view name, double value, std::string_view where = "");
void check_option(std::string_view name, const std::tuple<double, double>& value, std::string_view where = "");
/// Options of other types have no range, or the optimizer checks them.
template <class T>
void check_option(std::string_view /*name*/, const T& /*value*/, std::string_view /*where*/ = "") {}

}  // namespace detail

/// The options of LibTorch's optimizer, `TorchOptions`, and of StepOptions. A setter checks the
/// value, and returns `Derived`, so that calls chain.
/// @throws c10::ValueError  from a setter, for a number that is negative, inf or NaN, and for betas
///     outside [0, 1)
template <class Derived, class TorchOptions>
class CheckedOptions : public TorchOptions {
 public:
  /// beta1 and beta2.
  using betas_t = std::tuple<double, double>;
  /// Coefficients a, b and c.
  using ns_coefficients_t = std::tuple<double, double, double>;

  /// @param lr  learning rate
  CheckedOptions(double lr = 1e-3) : TorchOptions(lr) { detail::check_option("lr", lr); }
  /// Takes LibTorch's options unchanged.
  CheckedOptions(const TorchOptions& options) : TorchOptions(options) {}

#define MEZZO_TORCH_OPTION(T, name)                               \
  Derived& name(T value) {                                        \
    detail::check_option(#name, value);                           \
    TorchOptions::name(value);                                    \
    return static_cast<Derived&>(*this);                          \
  }                                                               \
  const T& name() const noexcept { return TorchOptions::name(); } \
  T& name() noexcept { return TorchOptions::name(); }
  MEZZO_TORCH_OPTION(double, lr)
  MEZZO_TORCH_OPTION(betas_t, betas)
  MEZZO_TORCH_OPTION(double, eps)
  MEZZO_TORCH_OPTION(double, weight_decay)
  MEZZO_TORCH_OPTION(bool, amsgrad)
  MEZZO_TORCH_OPTION(double, momentum)
  MEZZO_TORCH_OPTION(double, dampening)
  MEZZO_TORCH_OPTION(bool, nesterov)
  MEZZO_TORCH_OPTION(double, alpha)
  MEZZO_TORCH_OPTION(bool, centered)
  MEZZO_TORCH_OPTION(ns_coefficients_t, ns_coefficients)
  MEZZO_TORCH_OPTION(int64_t, ns_steps)
  MEZZO_TORCH_OPTION(std::string, adjust_lr_fn)
#undef MEZZO_TORCH_OPTION

  /// For LibTorch's schedulers; checks the value.
  void set_lr(const double lr) override { this->lr(lr); }

  /// Clips the gradients' total L2 norm. 0, the default: the norm is not measured. Infinity: the
  /// norm is measured, and gradients are never clipped.
  Derived& max_grad_norm(double value) {
    TORCH_CHECK_VALUE(value >= 0, "max_grad_norm must be at least 0, got ", value);
    step_options_.max_grad_norm = value;
    return static_cast<Derived&>(*this);
  }
  /// The limit of the norm.
  double max_grad_norm() const { return step_options_.max_grad_norm; }

  /// Rounds bfloat16 parameters up or down at random, with this seed. So updates below their
  /// precision take effect on average. nullopt, the default: rounds to nearest.
  Derived& stochastic_rounding_seed(std::optional<uint64_t> value) {
    step_options_.stochastic_rounding_seed = value;
    return static_cast<Derived&>(*this);
  }
  /// The seed of the rounding.
  std::optional<uint64_t> stochastic_rounding_seed() const { return step_options_.stochastic_rounding_seed; }

  /// Steps along the gradient instead of against it, as PyTorch's option in Python. Default: false.
  Derived& maximize(bool value) {
    step_options_.maximize = value;
    return static_cast<Derived&>(*this);
  }
  /// Whether steps go along the gradient.
  bool maximize() const { return step_options_.maximize; }

  /// The options that LibTorch's class lacks.
  const StepOptions& step_options() const { return step_options_; }

 private:
  StepOptions step_options_;
};

}  // namespace mezzo
