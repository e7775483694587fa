#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace mezzo {

/// The tensors that one update of one parameter reads and writes.
struct ParameterUpdate {
  at::Tensor param;               ///< floating, of any device
  at::Tensor gradient;            ///< its sizes and device, floating; read only
  at::Tensor half_copy;           ///< lower-precision copy to refresh from `param`; undefined: none
  at::Tensor step;                ///< updates done, 0-dim float32; undefined if the optimizer does not count
  std::vector<at::Tensor> slots;  ///< moments: contiguous, of its dtype, or float32 if it is half
  double lr = 0;                  ///< times that of GradientFactors, if there is one
  double weight_decay = 0;
  uint32_t index = 0;                     ///< among the optimizer's parameters
  std::optional<uint64_t> rounding_seed;  ///< round a bfloat16 `param` stochastically; nullopt: to nearest
  bool places_slots = false;              ///< whether to move `slots` near the CPU threads that update them
};

/// Values that all updates of a step share: 0-dim tensors on the parameters' device, float32 unless said, so that
/// nothing waits for them. An undefined one leaves its part out.
struct GradientFactors {
  at::Tensor inv_scale;  ///< multiplies gradients: 1 / loss scale
  at::Tensor clip;       ///< multiplies them then; float64 for float64 gradients
  at::Tensor found_inf;  ///< 1: the step changes nothing
  at::Tensor lr = {};    ///< float64: multiplies each update's `lr`
};

}  // namespace mezzo
