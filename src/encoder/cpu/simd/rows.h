#pragma once

#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/simd/convert.h"

/// Rows of any elements, read and written as float32.
namespace mezzo::encoder::cpu::MEZZO_SIMD {

using namespace kernels::cpu::MEZZO_SIMD;  // vectors, and elements loaded into them

inline int64_t size_of(Element element) { return element == Element::kFloat ? 4 : 2; }

/// What begins at element `first`.
inline ConstSpan tail(ConstSpan span, int64_t first) {
  return {static_cast<const char*>(span.data) + first * size_of(span.element), span.element};
}

/// Asks for `count` elements, which processors do not guess where rows lie far apart.
inline void read_ahead(ConstSpan span, int64_t count) {
  const auto* data = static_cast<const char*>(span.data);
  for (int64_t i = 0; i < count * size_of(span.element); i += 64) {
    __builtin_prefetch(data + i);
  }
}

/// `count` elements of `from`, from element `first` on, as float32: in place, or
/// converted into `scratch`.
inline const float* read(ConstSpan from, int64_t first, int64_t count, float* scratch) {
  const void* begin = tail(from, first).data;
  if (from.element == Element::kFloat) {
    return static_cast<const float*>(begin);
  }
  with_elements(from.element,
                [&]<class From>(From) { convert<From, Elements<Element::kFloat>>(begin, scratch, count); });
  return scratch;
}

/// Where to compute `count` elements of `to`: in place where those are float32, else
/// in `scratch`, for `write`.
inline float* place(Span to, int64_t first, float* scratch) {
  return to.element == Element::kFloat ? static_cast<float*>(to.data) + first : scratch;
}

/// Ends what `place` began: rounds `count` values at `values` into `to`.
inline void write(const float* values, Span to, int64_t first, int64_t count) {
  if (to.element != Element::kFloat) {
    char* begin = static_cast<char*>(to.data) + first * size_of(to.element);
    with_elements(to.element, [&]<class To>(To) { convert<Elements<Element::kFloat>, To>(values, begin, count); });
  }
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
