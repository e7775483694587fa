#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

/// Products of small matrices in half precision that a warp computes at once, summed in float32. Of
/// every matrix a lane holds some elements; with g = lane / 4 and t = 2 (lane % 4):
namespace mezzo::encoder::MEZZO_CUDA {

using namespace kernels::MEZZO_CUDA;  // the thin layer, elements

template <class T>
using Pair = Pack<T, 2>;

/// 16 x 16: columns t and t + 1 of rows g and g + 8, and columns t + 8 and t + 9 of them.
template <class T>
struct LeftTile {
  Pair<T> at[4];
};

/// 16 x 8: rows t and t + 1 of column g, and rows t + 8 and t + 9 of it.
template <class T>
struct RightTile {
  Pair<T> at[2];
};

/// 16 x 8: columns t and t + 1 of row g, and of row g + 8.
struct SumTile {
  float at[4];
};

/// Four matrices of 8 x 8 in shared memory, all lanes of the warp together: of each a lane gets columns t and t + 1 of
/// row g, or, transposed, rows t and t + 1 of column g.
/// @param row  gives the address of row i % 8 of matrix i / 8, which is a multiple of 16 bytes. Needs compute
/// capability 8.0.
template <bool kTransposed, class T, class RowOf>
MEZZO_DEVICE void load_matrices(int lane, Pair<T> (&to)[4], const RowOf& row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
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
    const T *const first = kTransposed ? row(8 * m + t) + g : row(8 * m + g) + t, *const second =
                                                                                      kTransposed
                                                                                          ? row(8 * m + t + 1) + g
                                                                                          : first + 1;
    to[m] = {{*first, *second}};
  }
#endif
}

/// sums += left times right; all lanes of the warp together. Needs compute capability 8.0.
#ifdef __CUDACC__
template <class T>
MEZZO_DEVICE void multiply_add(const Block& /*block*/,
                               SumTile& sums,
                               const LeftTile<T>& left,
                               const RightTile<T>& right) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  const auto& a = reinterpret_cast<const uint32_t(&)[4]>(left);
  const auto& b = reinterpret_cast<const uint32_t(&)[2]>(right);
  float(&d)[4] = sums.at;
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
#else
  __trap();
#endif
}
#else
template <class T>
void multiply_add(const Block& block, SumTile& sums, const LeftTile<T>& left, const RightTile<T>& right) {
  const std::pair mine(&left, &right);
  block.show_warp(mine, [&](const auto& of_lane) {
    const int lane = block.thread() % kWarp;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4, column = 2 * (lane % 4) + i % 2;
      for (int k = 0; k < 16; ++k) {
        const LeftTile<T>& a = *of_lane(4 * row + k % 8 / 2).first;
        const RightTile<T>& b = *of_lane(4 * column + k % 8 / 2).second;
        sums.at[i] += to_float(a.at[i / 2 + k / 8 * 2].at[k % 2]) * to_float(b.at[k / 8].at[k % 2]);
      }
    }
  });
}
#endif

}  // namespace mezzo::encoder::MEZZO_CUDA
