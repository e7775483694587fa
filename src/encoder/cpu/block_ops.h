#pragma once

#include <cmath>
#include <type_traits>

#include "encoder/block_ops.h"
#include "encoder/cpu/simd/kernels.h"

/// BlockOps on a CPU.
namespace mezzo::encoder::cpu {

#define MEZZO_DECLARE(name) std::remove_pointer_t<decltype(BlockOps::name)> name;
MEZZO_FOR_BLOCK_OPS(MEZZO_DECLARE)
MEZZO_DECLARE(first_token_attention)
MEZZO_DECLARE(first_token_attention_backward)
#undef MEZZO_DECLARE

/// A vector as float32; a tensor that owns them.
inline at::Tensor as_float(const at::Tensor& vector) { return vector.to(at::kFloat).contiguous(); }

/// A bias as float32, rounded to the dtype of the product that it is added to.
inline at::Tensor rounded_bias(const at::Tensor& bias, at::ScalarType dtype) { return as_float(bias.to(dtype)); }

inline Dropout dropout_of(const DropoutSite& site) {
  return {site.p > 0, static_cast<uint32_t>(std::ldexp(site.p, 32)), static_cast<float>(1 / (1 - site.p)), site.key};
}

extern const BlockOps kBlockOps;

}  // namespace mezzo::encoder::cpu
