#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/element_kernels.h"
#include "kernels/cpu/simd/philox.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {

void to_float(ConstSpan from, float* to, int64_t count) {
  with_elements(from.element,
                [&]<class From>(From) { convert<From, Elements<Element::kFloat>>(from.data, to, count); });
}

void from_float(const float* from, Span to, int64_t count) {
  with_elements(to.element, [&]<class To>(To) { convert<Elements<Element::kFloat>, To>(from, to.data, count); });
}

void round_stochastically(const float* from, uint16_t* bfloat16, int64_t first, int64_t count, const RandomKey& key) {
  constexpr int64_t kDraws = 8 * kWidth;  // half-words of kWidth blocks
  for (int64_t i = 0; i < count; i += kDraws) {
    const auto block = static_cast<uint64_t>(first + i) / 8;
    const auto words =
        in_order(philox(static_cast<uint32_t>(block) + counting(), Bits{} + static_cast<uint32_t>(block >> 32), key));
    uint16_t draws[kDraws];
    __builtin_memcpy(draws, &words, sizeof draws);  // the lower half of a word comes first
    const int64_t left = at_most(kDraws, count - i);
    for (int64_t j = 0; j < left; ++j) {
      bfloat16[i + j] = cut_to_bfloat16(float_to_bits(from[i + j]), draws[j]);
    }
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
