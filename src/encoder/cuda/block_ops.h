#pragma once

#include <cmath>
#include <type_traits>

#include "encoder/block_ops.h"
#include "encoder/cuda/mask_arguments.h"
#include "kernels/cuda/namespace.h"

/// BlockOps on a CUDA device, launched on its current stream.
namespace mezzo::encoder::MEZZO_CUDA {

#define MEZZO_DECLARE(name) std::remove_pointer_t<decltype(BlockOps::name)> name;
MEZZO_FOR_BLOCK_OPS(MEZZO_DECLARE)
#undef MEZZO_DECLARE

inline Mask mask_of(const DropoutSite& site) {
  return {static_cast<uint32_t>(std::ldexp(site.p, 32)), static_cast<float>(1 / (1 - site.p)), site.key,
          site.step_offset.defined() ? site.step_offset.const_data_ptr<int64_t>() : nullptr};
}

extern const BlockOps kBlockOps;

}  // namespace mezzo::encoder::MEZZO_CUDA
