#pragma once

namespace mezzo::kernels::cpu::MEZZO_SIMD {

/// A moment as it is stored: 0 where its magnitude is less than `least`. A NaN stays.
inline float flushed(float moment, float least) { return __builtin_fabsf(moment) < least ? 0.0f : moment; }

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
