#pragma once

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace mezzo::kernels::MEZZO_CUDA {

/// What a block takes of a list of tensors.
struct Chunk {
  int tensor;
  int64_t begin, end;
};

/// That of block `index`; of `first_block[count + 1]`, ascending.
MEZZO_DEVICE int tensor_of_block(const int32_t* first_block, int count, int64_t index) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_block[middle] <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

MEZZO_DEVICE Chunk chunk_of(const Block& block, const int32_t* first_block, int tensor, int64_t size) {
  const int64_t begin = (block.index() - first_block[tensor]) * kChunk;
  return {tensor, begin, begin + kChunk < size ? begin + kChunk : size};
}

/// Four elements of a tensor from a multiple of four on, as float32; 0 behind its end. At
/// once where the memory allows.
struct Four {
  float at[4];
};

template <class T>
MEZZO_DEVICE Four load_four(const void* data, int64_t first, int64_t end) {
  const T* from = static_cast<const T*>(data) + first;
  Four four{};
  if (first + 4 <= end && reinterpret_cast<uintptr_t>(from) % (4 * sizeof(T)) == 0) {
    const auto pack = *reinterpret_cast<const Pack<T, 4>*>(from);
    for (int i = 0; i < 4; ++i) {
      four.at[i] = to_float(pack.at[i]);
    }
  } else {
    for (int i = 0; i < 4; ++i) {
      four.at[i] = first + i < end ? to_float(from[i]) : 0;
    }
  }
  return four;
}

template <class T>
MEZZO_DEVICE void store_four(void* data, int64_t first, int64_t end, const Four& four) {
  T* to = static_cast<T*>(data) + first;
  Pack<T, 4> pack;
  for (int i = 0; i < 4; ++i) {
    pack.at[i] = from_float<T>(four.at[i]);
  }
  if (first + 4 <= end && reinterpret_cast<uintptr_t>(to) % (4 * sizeof(T)) == 0) {
    *reinterpret_cast<Pack<T, 4>*>(to) = pack;
  } else {
    for (int i = 0; i < 4; ++i) {
      if (first + i < end) {
        to[i] = pack.at[i];
      }
    }
  }
}

MEZZO_DEVICE Four load_four(const Span& span, int64_t first, int64_t end) {
  switch (span.element) {
    case Element::kFloat: return load_four<float>(span.data, first, end);
    case Element::kBFloat16: return load_four<BFloat16>(span.data, first, end);
    default: return load_four<Half>(span.data, first, end);
  }
}

MEZZO_DEVICE void store_four(const Span& span, int64_t first, int64_t end, const Four& four) {
  switch (span.element) {
    case Element::kFloat: store_four<float>(span.data, first, end, four); return;
    case Element::kBFloat16: store_four<BFloat16>(span.data, first, end, four); return;
    default: store_four<Half>(span.data, first, end, four);
  }
}

/// Zeros where there is no memory.
MEZZO_DEVICE Four load_if_any(const Span& span, int64_t first, int64_t end) {
  return span.data != nullptr ? load_four(span, first, end) : Four{};
}

/// Four of a bias, as `element` holds them; zeros of one that there is not.
MEZZO_DEVICE Four load_bias(const Span& bias, Element element, int64_t first, int64_t end) {
  Four four = load_if_any(bias, first, end);
  for (int i = 0; i < 4; ++i) {
    four.at[i] = rounded(four.at[i], element);
  }
  return four;
}

/// Calls `body(first)` for every four elements of the chunk; each thread takes its own.
template <class Body>
MEZZO_DEVICE void for_fours(const Block& block, const Chunk& chunk, const Body& body) {
  for (int64_t first = chunk.begin + 4 * block.thread(); first < chunk.end; first += 4 * block.threads()) {
    body(first);
  }
}

}  // namespace mezzo::kernels::MEZZO_CUDA
