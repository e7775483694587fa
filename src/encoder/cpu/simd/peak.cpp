#include "encoder/cpu/simd/table.h"

// What the instructions do that matrix products are made of, where they read nothing but registers.
namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

// Independent of each other: more than an instruction's latency times how many a processor begins in a cycle, and with
// two operands no more than AVX2 has registers.
constexpr int kSums = 12;

/// `x` may be anything from here on, so that nothing is computed ahead.
template <class Vector>
inline void forget(Vector& x) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(x));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(x));
#else
  asm volatile("" : "+m"(x));
#endif
}

template <class Vector, class Multiply>
inline Vector run(int64_t rounds, Vector left, Vector right, const Multiply& multiply) {
  Vector a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{}, k{}, l{};  // an array would lie in memory
  const auto add_to = [&](Vector& sum) {
    forget(left);
    forget(sum);  // or all sums would be one, as they begin alike
    sum = multiply(sum, left, right);
  };
  forget(right);
  for (int64_t round = 0; round < rounds; ++round) {
    add_to(a), add_to(b), add_to(c), add_to(d), add_to(e), add_to(f);
    add_to(g), add_to(h), add_to(i), add_to(j), add_to(k), add_to(l);
  }
  return a + b + c + d + e + f + g + h + i + j + k + l;
}

float float32(int64_t rounds) {
  return sum(run(rounds, broadcast(0.5f), broadcast(1.5f), [](Floats sum, Floats a, Floats b) { return sum * a + b; }));
}

#ifdef __AVX512BF16__
float bfloat16(int64_t rounds) {
  return sum(run(rounds, Floats{}, Floats{}, [](Floats sum, Floats a, Floats b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }));
}
#endif

#ifdef __AVX2__
float int8(int64_t rounds) {
  const Ints sums = run(rounds, Ints{}, Ints{}, [](Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
    return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
  });
  return static_cast<float>(sums[0]);
}
#endif

constexpr double kOperations = 2.0 * kSums * kWidth;  // of a round, in float32: a multiplication and an addition

}  // namespace

const PeakLoops peak_loops = {
    .float32 = {float32, kOperations},
#ifdef __AVX512BF16__
    .bfloat16 = {bfloat16, 2 * kOperations},
#else
    .bfloat16 = {},
#endif
#if defined(__AVX512VNNI__)
    .int8 = {int8, 4 * kOperations},
#elif defined(__AVX2__)
    .int8 = {int8, 2 * kOperations},  // which are multiplied as int16
#else
    .int8 = {},
#endif
};

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
