#pragma once

#include <cstdint>

#ifdef __x86_64__
#include <immintrin.h>
#endif

// Sources that include this are compiled once per instruction set, into a namespace named by MEZZO_SIMD (baseline,
// avx2, avx512, avx512_bf16). They must not include other headers with inline functions: the linker could keep a copy
// for faster machines. The core's files keep multiplications and additions apart, the encoder's fuse them. Headers that
// both include leave nothing to fuse, for the linker keeps one copy of each function.

namespace mezzo::kernels::cpu::MEZZO_SIMD {

#if defined(__AVX512F__)
constexpr int64_t kWidth = 16;
#elif defined(__AVX2__)
constexpr int64_t kWidth = 8;
#else
constexpr int64_t kWidth = 4;
#endif

/// kWidth floats, and words of the same size: compilers turn operators on them into instructions.
using Floats = float __attribute__((vector_size(kWidth * sizeof(float)), may_alias));
using Ints = int32_t __attribute__((vector_size(kWidth * sizeof(int32_t)), may_alias));
using Bits = uint32_t __attribute__((vector_size(kWidth * sizeof(uint32_t)), may_alias));

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

inline Floats load(const float* from) {
  Floats x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

inline void store(float* to, Floats x) { __builtin_memcpy(to, &x, sizeof x); }

inline Floats broadcast(float x) { return Floats{} + x; }

/// The first `count` floats, 0 to kWidth; zeros behind them.
inline Floats load_part(const float* from, int64_t count) {
  Floats x{};
  for (int64_t i = 0; i < count; ++i) {
    x[i] = from[i];
  }
  return x;
}

inline void store_part(float* to, Floats x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = x[i];
  }
}

inline float sum(Floats x) {
  float total = 0;
  for (int64_t i = 0; i < kWidth; ++i) {
    total += x[i];
  }
  return total;
}

inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

inline float max(Floats x) {
  float most = x[0];
  for (int64_t i = 1; i < kWidth; ++i) {
    most = x[i] > most ? x[i] : most;
  }
  return most;
}

/// Calls `body(i)` at every full vector of `count` elements and `rest(i, how_many)` for the rest.
template <class Body, class Rest>
inline void for_vectors(int64_t count, const Body& body, const Rest& rest) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    body(i);
  }
  if (i < count) {
    rest(i, count - i);
  }
}

/// The same, with the two loads and stores differing only: body(i, load, store).
template <class Body>
inline void for_each_vector(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    body(i, [](const float* from) { return load(from); }, [](float* to, Floats x) { store(to, x); });
  }
  if (const int64_t left = count - i; left > 0) {
    body(
        i, [left](const float* from) { return load_part(from, left); },
        [left](float* to, Floats x) { store_part(to, x, left); });
  }
}

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
