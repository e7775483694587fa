#include "encoder/cpu/int8_products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>

#include "encoder/cpu/row_blocks.h"
#include "encoder/cpu/simd/kernels.h"
#include "encoder/int8_weights.h"
#include "kernels/cpu/share_out.h"
#include "kernels/cpu/tensor_spans.h"

namespace mezzo::encoder::cpu {

using kernels::cpu::read_span;
using kernels::cpu::share_out;
using kernels::cpu::write_span;
namespace {

constexpr int64_t kRowsOfATask = 32;       // made integers by one task
constexpr int64_t kInt8PanelsOfATask = 4;  // packed by one task

/// Rows on the left as integers, and the memory that they are in.
struct QuantizedRows {
  QuantizedRows(const Int8Kernels& kernels, const at::Tensor& tensor)
      : source(tensor.stride(1) == 1 ? tensor : tensor.contiguous()),
        values(at::empty({tensor.size(0), kernels.row_bytes(tensor.size(1))}, at::kChar)),
        scales(at::empty({tensor.size(0)}, at::kFloat)),
        least(at::empty({tensor.size(0)}, at::kInt)) {}

  Int8Rows view() const {
    return {static_cast<char*>(values.mutable_data_ptr()), scales.mutable_data_ptr<float>(),
            least.mutable_data_ptr<int32_t>(), source.size(1)};
  }

  at::Tensor source, values, scales, least;
};

/// A weight in panels, and the scales and sums of its rows.
struct PackedInt8Weight {
  PackedInt8Weight(const Int8Kernels& kernels, const at::Tensor& transposed)
      : weight(transposed.t()), depth(weight.size(1) - kInt8ScaleBytes) {
    const int64_t width = kernels.panel_columns, columns = (weight.size(0) + width - 1) / width * width;
    scales = at::zeros({columns}, at::kFloat);
    scales.narrow(0, 0, weight.size(0)).copy_(int8_scales(weight));
    sums = at::empty({columns}, at::kInt);
    packed = at::empty({columns, kernels.row_bytes(depth)}, at::kChar);
  }

  at::Tensor weight;  ///< [N, depth + kInt8ScaleBytes]
  int64_t depth;
  at::Tensor scales, sums, packed;
};

}  // namespace

bool is_int8(const ProductSum& sum) { return is_int8_weight(sum.terms.front().second); }

void compute_int8(std::span<const ProductSum> sums) {
  TORCH_INTERNAL_ASSERT(simd_kernels().int8 != nullptr, "no products of int8 on this processor");
  const Int8Kernels& kernels = *simd_kernels().int8;
  std::vector<QuantizedRows> lefts;
  std::vector<size_t> left_of;
  std::vector<PackedInt8Weight> rights;
  for (const auto& sum : sums) {
    const auto& [left, right] = sum.terms.front();
    TORCH_INTERNAL_ASSERT(sum.terms.size() == 1 && !sum.adds && right.stride(0) == 1 && sum.output.is_contiguous());
    TORCH_INTERNAL_ASSERT(left.size(1) + kInt8ScaleBytes == right.size(0));
    const auto same =
        std::ranges::find_if(lefts, [&left = left](const auto& other) { return other.source.is_same(left); });
    left_of.push_back(same - lefts.begin());
    if (same == lefts.end()) {
      lefts.emplace_back(kernels, left);
    }
    rights.emplace_back(kernels, right);
  }

  std::vector<std::function<void()>> preparations;
  for (const auto& rows : lefts) {
    for (int64_t begin = 0, count = rows.source.size(0); begin < count; begin += kRowsOfATask) {
      preparations.emplace_back([&kernels, &rows, begin, end = std::min(count, begin + kRowsOfATask)] {
        kernels.quantize_rows(read_span(rows.source), rows.source.stride(0), rows.view(), begin, end);
      });
    }
  }
  for (const auto& right : rights) {
    const int64_t columns = right.weight.size(0), step = kInt8PanelsOfATask * kernels.panel_columns;
    for (int64_t begin = 0; begin < columns; begin += step) {
      preparations.emplace_back([&kernels, &right, begin, count = std::min(step, columns - begin)] {
        auto* packed = static_cast<char*>(right.packed.mutable_data_ptr()) + begin * kernels.row_bytes(right.depth);
        kernels.pack_panels(right.weight.const_data_ptr<int8_t>(), right.weight.stride(0), begin, count, right.depth,
                            reinterpret_cast<int32_t*>(packed), right.sums.mutable_data_ptr<int32_t>() + begin);
      });
    }
  }
  share_out(static_cast<int64_t>(preparations.size()), [&](const auto& next) {
    for (int64_t i = next(); i >= 0; i = next()) {
      preparations[i]();
    }
  });

  const auto tasks = row_blocks(sums, kernels.tile_rows);
  share_out(tasks.ends, [&](const auto& next) {
    for (int64_t i = next(); i >= 0; i = next()) {
      const auto& [sum, begin, end] = tasks.blocks[i];
      const auto& output = sums[sum].output;
      kernels.rows({lefts[left_of[sum]].view(), static_cast<const int32_t*>(rights[sum].packed.const_data_ptr()),
                    rights[sum].scales.const_data_ptr<float>(), rights[sum].sums.const_data_ptr<int32_t>(),
                    output.size(1), write_span(output)},
                   begin, end);
    }
  });
}

}  // namespace mezzo::encoder::cpu
