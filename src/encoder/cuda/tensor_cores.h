#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

/// Instructions of a warp for small matrices, and copies to shared memory. In half precision a warp multiplies at once
/// and sums in float32. Every lane holds some elements of a matrix, with g = lane / 4 and t = 2 (lane % 4):
namespace mezzo::encoder::MEZZO_CUDA {

using namespace kernels::MEZZO_CUDA;  // the thin layer, elements

template <class T>
using Pair = Pack<T, 2>;

/// 16 x 16: columns t and t + 1 of rows g and g + 8, then columns t + 8 and t + 9 of both.
template <class T>
struct LeftTile {
  Pair<T> at[4];
};

/// 16 x 8: rows t and t + 1 of column g, then rows t + 8 and t + 9.
template <class T>
struct RightTile {
  Pair<T> at[2];
};

/// 16 x 8: columns t and t + 1 of row g, then of row g + 8.
struct SumTile {
  float at[4];
};

/// Loads four matrices of 8 x 8 from shared memory, all lanes of the warp together. Of each a lane gets columns t and
/// t + 1 of row g, or, transposed, rows t and t + 1 of column g.
/// @param row  gives the address of row i % 8 of matrix i / 8, which is a multiple of 16 bytes
template <bool kTransposed, class T, class RowOf>
MEZZO_DEVICE void load_matrices(int lane, Pair<T> (&to)[4], const RowOf& row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  auto& d = reinterpret_cast<uint32_t(&)[4]>(to);
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row(lane)));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
  }
#else
  const int g = lane / 4, t = 2 * (lane % 4);
  for (int m = 0; m < 4; ++m) {
    to[m] = kTransposed ? Pair<T>{{row(8 * m + t)[g], row(8 * m + t + 1)[g]}}
                        : Pair<T>{{row(8 * m + g)[t], row(8 * m + g)[t + 1]}};
  }
#endif
}

#ifdef __CUDACC__
/// Where tensor cores do not know the type: bfloat16 before compute capability 8.0.
template <class T>
MEZZO_COLD SumTile multiply_add_by_shuffles(SumTile sums, LeftTile<T> left, RightTile<T> right) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto& a = reinterpret_cast<const uint32_t(&)[4]>(left);
  const auto& b = reinterpret_cast<const uint32_t(&)[2]>(right);
  MEZZO_ROLLED
  for (int k = 0; k < 4; ++k) {
    for (int half = 0; half < 2; ++half) {
      uint32_t rows[2], columns[2];
      for (int i = 0; i < 2; ++i) {
        rows[i] = __shfl_sync(0xFFFFFFFF, a[2 * half + i], lane / 4 * 4 + k);
        columns[i] = __shfl_sync(0xFFFFFFFF, b[half], 4 * (2 * (lane % 4) + i) + k);
      }
      for (int i = 0; i < 4; ++i) {
        const auto &row = reinterpret_cast<const Pair<T>&>(rows[i / 2]),
                   &column = reinterpret_cast<const Pair<T>&>(columns[i % 2]);
        for (int e = 0; e < 2; ++e) {
          sums.at[i] = ::fmaf(to_float(row.at[e]), to_float(column.at[e]), sums.at[i]);
        }
      }
    }
  }
  return sums;
}

#endif

/// sums += left times right; all lanes of the warp together.
template <class T>
MEZZO_DEVICE void multiply_add([[maybe_unused]] const Block& block,
                               SumTile& sums,
                               const LeftTile<T>& left,
                               const RightTile<T>& right) {
#ifdef __CUDACC__
  const auto& a = reinterpret_cast<const uint32_t(&)[4]>(left);
  const auto& b = reinterpret_cast<const uint32_t(&)[2]>(right);
  float(&d)[4] = sums.at;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  if constexpr (std::is_same_v<T, BFloat16> || __CUDA_ARCH__ < 750) {
    sums = multiply_add_by_shuffles(sums, left, right);
  } else {
    for (int half = 0; half < 2; ++half) {
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
  }
#else
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#endif
#else
  const std::pair mine(&left, &right);
  block.show_warp(mine, [&](const auto& of_lane) {
    const int lane = block.thread() % kWarp;
    float rows[2][16], columns[2][16];
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 16; ++k) {
        const LeftTile<T>& a = *of_lane(lane / 4 * 4 + k % 8 / 2).first;
        const RightTile<T>& b = *of_lane(4 * (2 * (lane % 4) + i) + k % 8 / 2).second;
        rows[i][k] = to_float(a.at[i + k / 8 * 2].at[k % 2]);
        columns[i][k] = to_float(b.at[k / 8].at[k % 2]);
      }
    }
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 16; ++k) {
        sums.at[i] += rows[i / 2][k] * columns[i % 2][k];
      }
    }
  });
#endif
}

/// Copies 4 or 16 aligned bytes from global to shared memory. From compute capability 8.0 on the thread goes on
/// meanwhile, until it waits.
template <class P>
MEZZO_DEVICE void copy_async(P* to, const P* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (sizeof(P) == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(address), "l"(from) : "memory");
  } else {
    static_assert(sizeof(P) == 4);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(address), "l"(from) : "memory");
  }
#else
  *to = *from;
#endif
}

/// Ends a group of the thread's copies.
MEZZO_DEVICE void commit_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}

/// Waits for the thread's groups except the newest kGroups.
template <int kGroups>
MEZZO_DEVICE void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" : : "n"(kGroups) : "memory");
#endif
}

}  // namespace mezzo::encoder::MEZZO_CUDA
