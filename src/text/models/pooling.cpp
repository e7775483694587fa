#include "text/models/pooling.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace mezzo::text {

at::Tensor mean_of_sequences(const at::Tensor& rows, const encoder::SequenceLayout& layout) {
  const int64_t count = layout.size();
  const auto tokens = layout.table().select(1, 1);
  const auto number = at::arange(rows.size(0), layout.first_rows().options());
  // The last sequence that begins at or before a row; a row behind its tokens is of none.
  const auto begun = at::searchsorted(layout.first_rows(), number, /*out_int32=*/false, /*right=*/true) - 1;
  const auto nearest = begun.clamp_min(0);
  const auto is_of_it = (number - layout.first_rows().index_select(0, nearest)).lt(tokens.index_select(0, nearest));
  const auto owner = at::where(begun.ge(0).logical_and(is_of_it), nearest, count);
  const auto dtype = at::promote_types(rows.scalar_type(), at::kFloat);
  const auto sums =
      at::zeros({count + 1, rows.size(1)}, rows.options().dtype(dtype)).index_add(0, owner, rows.to(dtype));
  return sums.narrow(0, 0, count) / tokens.clamp_min(1).to(dtype).unsqueeze(1);
}

at::Tensor pool_windows(const at::Tensor& outputs, const at::Tensor& window_counts, const std::string& how) {
  if (!window_counts.defined()) {
    return outputs;
  }
  return at::segment_reduce(outputs.to(at::kFloat), how, window_counts, /*indices=*/{}, /*offsets=*/{},
                            /*axis=*/0, /*unsafe=*/true);
}

}  // namespace mezzo::text
