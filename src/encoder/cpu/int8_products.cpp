#include "encoder/cpu/int8_products.h"

#include <ATen/ceil_div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "encoder/cpu/kept_behind.h"
#include "encoder/cpu/product_blocks.h"
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

/// What lies behind the memory of an int8_weight(): its panels, and the scales and sums of its rows.
struct Int8Panels {
  at::Tensor values;  ///< [N, depth + kInt8ScaleBytes]
  at::Tensor packed, scales, sums;
};

Int8Panels pack(const Int8Kernels& kernels, const at::Tensor& weight) {
  const int64_t rows = weight.size(0), depth = weight.size(1) - kInt8ScaleBytes, width = kernels.panel_columns,
                columns = at::round_up(rows, width), step = kInt8PanelsOfATask * width;
  const Int8Panels made{weight, at::empty({columns, kernels.row_bytes(depth)}, at::kChar),
                        at::zeros({columns}, at::kFloat), at::empty({columns}, at::kInt)};
  made.scales.narrow(0, 0, rows).copy_(int8_scales(weight));
  share_out((rows + step - 1) / step, [&](const auto& next) {
    for (int64_t i = next(); i >= 0; i = next()) {
      const int64_t begin = i * step;
      auto* packed = static_cast<char*>(made.packed.mutable_data_ptr()) + begin * kernels.row_bytes(depth);
      kernels.pack_panels(weight.const_data_ptr<int8_t>(), weight.stride(0), begin, std::min(step, rows - begin), depth,
                          reinterpret_cast<int32_t*>(packed), made.sums.mutable_data_ptr<int32_t>() + begin);
    }
  });
  return made;
}

}  // namespace

bool is_int8(const ProductSum& sum) { return is_int8_weight(sum.terms.front().second); }

void compute_int8(std::span<const ProductSum> sums) {
  TORCH_INTERNAL_ASSERT(simd_kernels().int8 != nullptr, "no products of int8 on this processor");
  const Int8Kernels& kernels = *simd_kernels().int8;
  std::vector<QuantizedRows> lefts;
  std::vector<size_t> left_of;
  std::vector<Int8Panels> rights;
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
    const auto* kept = kept_behind_transposed<Int8Panels>(right);
    rights.push_back(kept != nullptr ? *kept : pack(kernels, right.t()));
  }

  struct RowsOfATask {
    const QuantizedRows* rows;
    int64_t begin, end;
  };
  std::vector<RowsOfATask> parts;
  for (const auto& rows : lefts) {
    for (int64_t begin = 0, count = rows.source.size(0); begin < count; begin += kRowsOfATask) {
      parts.push_back({&rows, begin, std::min(count, begin + kRowsOfATask)});
    }
  }
  share_out(std::ssize(parts), [&](const auto& next) {
    for (int64_t i = next(); i >= 0; i = next()) {
      const auto& [rows, begin, end] = parts[i];
      kernels.quantize_rows(read_span(rows->source), rows->source.stride(0), rows->view(), begin, end);
    }
  });

  const auto tasks = product_blocks(sums, kernels.tile_rows, kernels.panel_columns);
  share_out(tasks.ends, [&](const auto& next) {
    for (int64_t i = next(); i >= 0; i = next()) {
      const auto& [sum, begin, end, first_column, columns] = tasks.blocks[i];
      const auto& output = sums[sum].output;
      kernels.rows({lefts[left_of[sum]].view(), static_cast<const int32_t*>(rights[sum].packed.const_data_ptr()),
                    rights[sum].scales.const_data_ptr<float>(), rights[sum].sums.const_data_ptr<int32_t>(),
                    first_column, first_column + columns, output.size(1), write_span(output)},
                   begin, end);
    }
  });
}

at::Tensor with_int8_panels(const at::Tensor& weight) { return keep_behind(pack(*simd_kernels().int8, weight)); }

}  // namespace mezzo::encoder::cpu
