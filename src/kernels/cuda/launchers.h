#pragma once

#include "kernels/cuda/arguments.h"
#include "kernels/scaling_elements.h"
#include "kernels/update_elements.h"

/// The kernels, each queued on a stream of the current device.
namespace mezzo::kernels::MEZZO_CUDA {

/// Elements of a tensor that one block takes: a multiple of 8, as the draws of rounding want it.
constexpr int64_t kChunk = 8192;

/// Arguments of a kernel may take this from compute capability 7.0 and CUDA 12.1's driver on; why_no_image refuses
/// older drivers.
constexpr int kArgumentBytes = 32764;

/// Most tensors of a launch, with 256 bytes for the rest of their list.
template <class Item>
constexpr int kMostOfList = (kArgumentBytes - 256) / static_cast<int>(sizeof(Item) + sizeof(int32_t));

struct Gradient {
  Span values;
  int64_t size;
};

/// Tensors of a launch, side by side: blocks first_block[i] to first_block[i + 1] - 1 take tensor i.
struct GradientList {
  static constexpr int kMost = kMostOfList<Gradient>;
  Gradient gradients[kMost];
  int32_t first_block[kMost + 1];
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

/// A gradient and the memory of its quotient: the gradient's own, or memory of another type. If `data` is nullptr there
/// is none; then its type is still the type that the quotient is rounded to.
struct Unscaled {
  Span gradient, into;
  int64_t size;
};

/// As GradientList has it.
struct UnscaledList {
  static constexpr int kMost = kMostOfList<Unscaled>;
  Unscaled gradients[kMost];
  int32_t first_block[kMost + 1];
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

struct Parameter {
  Span param, gradient, half_copy;
  float* slots[3];
  float* step;  ///< of updates so far; nullptr: they are not counted
  int64_t size;
  double lr, weight_decay;
  uint32_t index;
};

/// As GradientList has it.
template <class Settings>
struct ParameterList {
  static constexpr int kMost = kMostOfList<Parameter>;
  Parameter parameters[kMost];
  int32_t first_block[kMost + 1];
  int count;
  Settings settings;
  bool flushes_denormals;
  bool rounds_stochastically;  ///< bfloat16 parameters
  uint64_t rounding_seed;
  DeviceFactors factors;
  typename Settings::Constants* constants;  ///< memory: one a parameter
  double* norms;                            ///< LAMB: two sums a block, of squares of parameters and of directions
};
static_assert(sizeof(ParameterList<AdamSettings>) <= kArgumentBytes && sizeof(GradientList) <= kArgumentBytes &&
              sizeof(UnscaledList) <= kArgumentBytes);

/// Each counts the steps first, unless the step is skipped.
void adam(const ParameterList<AdamSettings>& list, Stream stream);
void sgd(const ParameterList<SgdSettings>& list, Stream stream);
void rmsprop(const ParameterList<RmspropSettings>& list, Stream stream);
void lamb(const ParameterList<LambSettings>& list, Stream stream);

}  // namespace mezzo::kernels::MEZZO_CUDA
