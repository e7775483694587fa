#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/launchers.h"

namespace mezzo::kernels::MEZZO_CUDA {

/// A block's part of a list of tensors.
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

/// @param items  the tensors of the list
template <class List, class Item>
MEZZO_DEVICE Chunk chunk_of(const Block& block, const List& list, const Item* items) {
  const int tensor = tensor_of_block(list.first_block, list.count, block.index());
  const int64_t begin = (block.index() - list.first_block[tensor]) * kChunk, size = items[tensor].size;
  return {tensor, begin, begin + kChunk < size ? begin + kChunk : size};
}

/// Launches a block for every chunk of the list's tensors; none if they have no elements.
template <class Kernel, class List>
void launch_on_chunks(const List& list, int threads, int shared_bytes, Stream stream) {
  if (const int32_t blocks = list.first_block[list.count]; blocks > 0) {
    launch<Kernel>(Grid{blocks, threads, shared_bytes}, stream, list);
  }
}

/// Four elements of a tensor from a multiple of four on, as float32; 0 behind its end. Read at once if the memory
/// allows.
struct Four {
  float at[4];
};

/// One by one, where memory is not aligned or ends before.
MEZZO_COLD Four load_some(Span span, int64_t first, int64_t end) {
  Four four{};
  for (int i = 0; i < 4; ++i) {
    four.at[i] = first + i < end ? load(span, first + i) : 0;
  }
  return four;
}

MEZZO_COLD void store_some(Span span, int64_t first, int64_t end, Four four) {
  for (int i = 0; i < 4; ++i) {
    if (first + i < end) {
      store(span, first + i, four.at[i]);
    }
  }
}

/// Whether four elements from `first` on, of which `from` is the first, can be read and written at once.
template <class T>
MEZZO_DEVICE bool are_at_once(const T* from, int64_t first, int64_t end) {
  return first + 4 <= end && reinterpret_cast<uintptr_t>(from) % (4 * sizeof(T)) == 0;
}

/// Of any element: float32, or else a half type.
MEZZO_DEVICE bool are_at_once(const Span& span, int64_t first, int64_t end) {
  return is_half(span) ? are_at_once(static_cast<const uint16_t*>(span.data) + first, first, end)
                       : are_at_once(static_cast<const float*>(span.data) + first, first, end);
}

/// How a kernel reads and writes four elements. With kWhole it was launched where all of them lie so that they can be
/// at once; else every load looks, and the next one waits for that.
template <bool kWhole>
struct Fours {
  template <class T>
  MEZZO_DEVICE static Four load(const void* data, int64_t first, int64_t end) {
    const T* from = static_cast<const T*>(data) + first;
    if (!kWhole && !are_at_once(from, first, end)) {
      return load_some({const_cast<void*>(data), element_of<T>()}, first, end);
    }
    const auto pack = *reinterpret_cast<const Pack<T, 4>*>(from);
    Four four;
    for (int i = 0; i < 4; ++i) {
      four.at[i] = to_float(pack.at[i]);
    }
    return four;
  }

  template <class T>
  MEZZO_DEVICE static void store(void* data, int64_t first, int64_t end, const Four& four) {
    T* to = static_cast<T*>(data) + first;
    if (!kWhole && !are_at_once(to, first, end)) {
      return store_some({data, element_of<T>()}, first, end, four);
    }
    Pack<T, 4> pack;
    for (int i = 0; i < 4; ++i) {
      pack.at[i] = from_float<T>(four.at[i]);
    }
    *reinterpret_cast<Pack<T, 4>*>(to) = pack;
  }

  MEZZO_DEVICE static Four load(const Span& span, int64_t first, int64_t end) {
    if (!kWhole && !are_at_once(span, first, end)) {
      return load_some(span, first, end);
    }
    Four four;
    if (is_half(span)) {
      const auto bits = *reinterpret_cast<const Pack<uint16_t, 4>*>(static_cast<const uint16_t*>(span.data) + first);
      for (int i = 0; i < 4; ++i) {
        four.at[i] = float_of_bits(bits.at[i], span.element);
      }
    } else {
      const auto pack = *reinterpret_cast<const Pack<float, 4>*>(static_cast<const float*>(span.data) + first);
      for (int i = 0; i < 4; ++i) {
        four.at[i] = pack.at[i];
      }
    }
    return four;
  }

  MEZZO_DEVICE static void store(const Span& span, int64_t first, int64_t end, const Four& four) {
    if (!kWhole && !are_at_once(span, first, end)) {
      return store_some(span, first, end, four);
    }
    if (is_half(span)) {
      Pack<uint16_t, 4> bits;
      for (int i = 0; i < 4; ++i) {
        bits.at[i] = bits_of_float(four.at[i], span.element);
      }
      *reinterpret_cast<Pack<uint16_t, 4>*>(static_cast<uint16_t*>(span.data) + first) = bits;
    } else {
      Pack<float, 4> pack;
      for (int i = 0; i < 4; ++i) {
        pack.at[i] = four.at[i];
      }
      *reinterpret_cast<Pack<float, 4>*>(static_cast<float*>(span.data) + first) = pack;
    }
  }

  /// Zeros without memory.
  MEZZO_DEVICE static Four load_if_any(const Span& span, int64_t first, int64_t end) {
    return span.data != nullptr ? load(span, first, end) : Four{};
  }

  /// Four of a bias, as `element` holds them; zeros of one that there is not.
  MEZZO_DEVICE static Four load_bias(const Span& bias, Element element, int64_t first, int64_t end) {
    Four four = load_if_any(bias, first, end);
    for (int i = 0; i < 4; ++i) {
      four.at[i] = rounded(four.at[i], element);
    }
    return four;
  }
};

/// Calls `body` with whether all fours can be read and written at once. The rows are contiguous, of `columns` columns,
/// and begin at `memory`; nullptr is allowed.
template <class Body>
void with_whole_fours(int64_t columns, std::initializer_list<const void*> memory, const Body& body) {
  bool are_whole = columns % 4 == 0;
  for (const void* each : memory) {
    are_whole = are_whole && reinterpret_cast<uintptr_t>(each) % sizeof(Four) == 0;
  }
  are_whole ? body(std::true_type()) : body(std::false_type());
}

template <class T>
MEZZO_DEVICE Four load_four(const void* data, int64_t first, int64_t end) {
  return Fours<false>::load<T>(data, first, end);
}
template <class T>
MEZZO_DEVICE void store_four(void* data, int64_t first, int64_t end, const Four& four) {
  Fours<false>::store<T>(data, first, end, four);
}
MEZZO_DEVICE Four load_four(const Span& span, int64_t first, int64_t end) {
  return Fours<false>::load(span, first, end);
}
MEZZO_DEVICE void store_four(const Span& span, int64_t first, int64_t end, const Four& four) {
  Fours<false>::store(span, first, end, four);
}
MEZZO_DEVICE Four load_bias(const Span& bias, Element element, int64_t first, int64_t end) {
  return Fours<false>::load_bias(bias, element, first, end);
}

/// Calls `body(first)` for every four elements of the chunk; each thread takes its own.
template <class Body>
MEZZO_DEVICE void for_fours(const Block& block, const Chunk& chunk, const Body& body) {
  for (int64_t first = chunk.begin + 4 * block.thread(); first < chunk.end; first += 4 * block.threads()) {
    body(first);
  }
}

}  // namespace mezzo::kernels::MEZZO_CUDA
