#pragma once

#include <cstdint>

#include "kernels/element.h"

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

}  // namespace mezzo::kernels::cpu
