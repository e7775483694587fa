#pragma once

#include "kernels/cuda/arguments.h"
#include "kernels/scaling_elements.h"
#include "kernels/update_elements.h"

/// The kernels, each queued on a stream of the current device.
namespace mezzo::kernels::MEZZO_CUDA {

/// Elements of a tensor that one block takes: a multiple of 8, as the draws of rounding want it.
constexpr int64_t kChunk = 8192;

/// Arguments of a kernel may take 4 KB on every driver.
constexpr int kMaxGradients = 100, kMaxUnscaled = 80, kMaxParameters = 30, kMaxCounters = 480;

/// Tensors of a launch, side by side: those of tensor i are taken by blocks first_block[i]
/// to first_block[i + 1] - 1.
struct GradientList {
  Span gradients[kMaxGradients];
  int64_t sizes[kMaxGradients];
  int32_t first_block[kMaxGradients + 1];
  int count;
  double* sums;  ///< a block's sum of squares each
};
void sum_squares(const GradientList& list, Stream stream);

/// The last step of kernels::summarize_gradients.
struct SummaryArguments {
  const double* sums;
  int64_t count;
  const float* scale;  ///< nullptr means 1
  float max_norm;
  float *norm, *found_inf;
  double* sum_of_squares;
  float *inv_scale, *clip;
};
void summarize(const SummaryArguments& arguments, Stream stream);

/// A gradient and where its quotient goes: memory of another type or its own, or, where `data` is
/// nullptr, none; its type is the one that the quotient is rounded to then, too.
struct Unscaled {
  Span gradient, into;
  int64_t size;
};

/// As GradientList has it.
struct UnscaledList {
  Unscaled gradients[kMaxUnscaled];
  int32_t first_block[kMaxUnscaled + 1];
  int count;
  const float* scale;
  bool looks_at_results;  ///< or else at the gradients alone
  float* non_finite;      ///< a block's count each
};
void unscale(const UnscaledList& list, Stream stream);

/// The last step of kernels::check_gradients and kernels::unscale_gradients.
struct FoundInfArguments {
  const float* non_finite;
  int64_t count;
  const float* scale;  ///< nullptr: it is not looked at
  float* found_inf;
};
void write_found_inf(const FoundInfArguments& arguments, Stream stream);

struct LossScaleArguments {
  float* scale;
  int32_t* counts;  ///< [kNumLossScaleCounts]
  const float* found_inf;
  LossScaleRules rules;
};
void update_loss_scale(const LossScaleArguments& arguments, Stream stream);

/// Numbers on the device that a step depends on; nullptr leaves one out.
struct DeviceFactors {
  const float *inv_scale = nullptr, *clip = nullptr, *found_inf = nullptr;
  const double* lr = nullptr;
};

/// Adds 1 to each counter, unless the step is skipped.
struct CounterList {
  float* counters[kMaxCounters];
  int count;
  const float* found_inf;
};
void count_steps(const CounterList& list, Stream stream);

struct Parameter {
  Span param, gradient, half_copy;
  float* slots[3];
  const float* step;  ///< counted already
  int64_t size;
  double lr, weight_decay;
  uint32_t index;
};

/// As GradientList has it.
template <class Settings>
struct ParameterList {
  Parameter parameters[kMaxParameters];
  int32_t first_block[kMaxParameters + 1];
  int count;
  Settings settings;
  bool flushes_denormals;
  bool rounds_stochastically;  ///< bfloat16 parameters
  uint64_t rounding_seed;
  DeviceFactors factors;
  double* norms;  ///< LAMB: two sums a block, of squares of parameters and of directions
};
static_assert(sizeof(ParameterList<AdamSettings>) <= 4096 && sizeof(GradientList) <= 4096 &&
              sizeof(UnscaledList) <= 4096 && sizeof(CounterList) <= 4096);

void adam(const ParameterList<AdamSettings>& list, Stream stream);
void sgd(const ParameterList<SgdSettings>& list, Stream stream);
void rmsprop(const ParameterList<RmspropSettings>& list, Stream stream);
/// Both of its passes over the parameters.
void lamb(const ParameterList<LambSettings>& list, Stream stream);

}  // namespace mezzo::kernels::MEZZO_CUDA
