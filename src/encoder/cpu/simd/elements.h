#pragma once

#include <cstdint>

namespace mezzo::kernels::cpu {

/// What an array holds; kernels compute in float32 whatever it is.
enum class Element { kFloat, kBFloat16, kHalf };

/// Elements somewhere, to read.
struct ConstSpan {
  const void* data;
  Element element;
};

/// Elements somewhere, to write.
struct Span {
  void* data;
  Element element;
  operator ConstSpan() const { return {data, element}; }
};

}  // namespace mezzo::kernels::cpu
