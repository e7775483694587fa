#include "text/models/pooling.h"

#include <ATen/ops/promote_types.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "memory/device_copy.h"

namespace mezzo::text {

at::Tensor mean_of_sequences(const at::Tensor& rows, const encoder::SequenceLayout& layout) {
  const auto& sequences = layout.sequences();
  const auto count = static_cast<int64_t>(sequences.size());
  std::vector<int64_t> owners(rows.size(0), count);  // behind the last sequence: rows of none
  std::vector<double> lengths;
  for (int64_t b = 0; b < count; ++b) {
    const auto [first, tokens] = sequences[b];
    std::fill_n(owners.begin() + first, tokens, b);
    lengths.push_back(static_cast<double>(tokens));
  }
  const auto dtype = at::promote_types(rows.scalar_type(), at::kFloat);
  const auto owner = copy_to(at::tensor(owners, at::kLong), rows.device());
  const auto length = copy_to(at::tensor(lengths, at::kDouble).to(dtype), rows.device());
  const auto sums =
      at::zeros({count + 1, rows.size(1)}, rows.options().dtype(dtype)).index_add(0, owner, rows.to(dtype));
  return sums.narrow(0, 0, count) / length.unsqueeze(1);
}

at::Tensor pool_windows(const at::Tensor& outputs, const PackedBatch& batch, const std::string& how) {
  if (!batch.window_counts.defined()) {
    return outputs;
  }
  return at::segment_reduce(outputs.to(at::kFloat), how, batch.window_counts, /*indices=*/{}, /*offsets=*/{},
                            /*axis=*/0, /*unsafe=*/true);
}

}  // namespace mezzo::text
