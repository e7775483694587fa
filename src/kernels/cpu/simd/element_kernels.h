#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/simd/elements.h"
#include "kernels/random_key.h"
#include "kernels/update_elements.h"

// Loops over elements, compiled once per instruction set; all give the same bits. kernels/update_elements.h has the
// work on one element.

namespace mezzo::kernels::cpu {

/// Squared norms of a parameter and of the direction it moves in.
struct LambNorms {
  double param, direction;
};

/// One instruction set's loops. Arrays of one call do not overlap, unless a comment allows it.
struct ElementKernels {
  /// Rounding is to nearest even; NaN stays NaN.
  void (*to_float)(ConstSpan from, float* to, int64_t count);
  void (*from_float)(const float* from, Span to, int64_t count);
  /// reference::round_stochastically for elements `first` ... `first + count - 1`;
  /// `first` is a multiple of 128.
  void (*round_stochastically)(
      const float* from, uint16_t* bfloat16, int64_t first, int64_t count, const RandomKey& key);

  /// @param max_exp_avg_sq  nullptr without amsgrad
  void (*adam)(float* param,
               const float* gradient,
               float* exp_avg,
               float* exp_avg_sq,
               float* max_exp_avg_sq,
               int64_t count,
               const AdamConstants& c);
  /// The same, step after step, for gradients of 0, without amsgrad: a pass over memory does all steps.
  void (*adam_without_gradient)(
      float* param, float* exp_avg, float* exp_avg_sq, int64_t count, const AdamConstants* steps, int64_t num_steps);
  /// @param momentum_buffer  nullptr without momentum
  void (*sgd)(float* param, const float* gradient, float* momentum_buffer, int64_t count, const SgdConstants& c);
  /// @param momentum_buffer  nullptr without momentum
  /// @param grad_avg  nullptr unless centered
  void (*rmsprop)(float* param,
                  const float* gradient,
                  float* square_avg,
                  float* momentum_buffer,
                  float* grad_avg,
                  int64_t count,
                  const RmspropConstants& c);

  void (*lamb_moments)(const float* gradient, float* exp_avg, float* exp_avg_sq, int64_t count, const LambConstants& c);
  LambNorms (*lamb_norms)(
      const float* param, const float* exp_avg, const float* exp_avg_sq, int64_t count, const LambConstants& c);
  void (*lamb_params)(float* param,
                      const float* exp_avg,
                      const float* exp_avg_sq,
                      int64_t count,
                      float step_size,
                      const LambConstants& c);

  /// In double, which holds the square of any float32, so only inf and NaN give inf or NaN.
  double (*sum_of_squares)(const float* values, int64_t count);
  /// sum = a + b; `sum` may be `a` or `b`.
  void (*add)(const float* a, const float* b, float* sum, int64_t count);
};

#define MEZZO_FOR_ELEMENT_KERNELS(what)                                                                       \
  what(to_float) what(from_float) what(round_stochastically) what(adam) what(adam_without_gradient) what(sgd) \
      what(rmsprop) what(lamb_moments) what(lamb_norms) what(lamb_params) what(sum_of_squares) what(add)

/// Those for `instruction_set()`.
const ElementKernels& element_kernels();

/// All that this machine can run, the least first.
std::span<const ElementKernels* const> all_element_kernels();

}  // namespace mezzo::kernels::cpu
