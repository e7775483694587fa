#pragma once

#include "kernels/cpu/simd/simd.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {

/// x times its factor of dropout: 0 where that is 0, also of infinity and NaN.
inline Floats dropped(Floats x, Floats factor) { return (factor > 0.0f ? x : Floats{}) * factor; }

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
