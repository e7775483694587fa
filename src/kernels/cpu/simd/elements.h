#pragma once

#include <cstdint>

#include "kernels/element.h"
#include "kernels/random_key.h"

namespace mezzo::kernels::cpu {

using kernels::Element;

/// Elements somewhere, to read.
struct ConstSpan {
  const void* data;
  Element element;
};

/// Elements somewhere, to write.
struct Span {
  void* data;
  Element element;
  [[gnu::always_inline]] operator ConstSpan() const { return {data, element}; }
};

/// Which elements are dropped: with probability threshold / 2^32; the others
/// are multiplied by `scale`.
struct Dropout {
  bool is_on;
  uint32_t threshold;
  float scale;
  RandomKey key;
};

}  // namespace mezzo::kernels::cpu
