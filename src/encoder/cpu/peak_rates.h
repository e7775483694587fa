#pragma once

namespace mezzo::encoder::cpu {

/// Operations a second, a multiplication and an addition being two: of all LibTorch's threads together, and 0 where
/// there is no instruction of `instruction_set()` for it.
struct PeakRates {
  double float32 = 0, bfloat16 = 0, int8 = 0;
};

/// What matrix products could come to if they did not read memory: measured for some 10 ms each, the best of five
/// times.
PeakRates peak_rates();

}  // namespace mezzo::encoder::cpu
