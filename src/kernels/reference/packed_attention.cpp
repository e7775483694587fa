#include "kernels/packed_attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/dropout.h"

namespace mezzo::kernels {

SequenceLayout::SequenceLayout(const at::Tensor& cu_seqlens,
                               const at::Tensor& seqlens,
                               int64_t num_rows,
                               const at::Device& device)
    : batch_size(seqlens.size(0)), max_seqlen(seqlens.max().item<int64_t>()) {
  const auto first = cu_seqlens.accessor<int32_t, 1>();
  const auto counts = seqlens.accessor<int32_t, 1>();
  std::vector<int64_t> pad(batch_size * max_seqlen, 0), unpad(num_rows, 0);
  for (int64_t b = 0; b < batch_size; ++b) {
    for (int64_t i = 0; i < counts[b]; ++i) {
      pad[b * max_seqlen + i] = first[b] + i;
      unpad[first[b] + i] = b * max_seqlen + i;
    }
  }
  first_rows = cu_seqlens.narrow(0, 0, batch_size).to(device, at::kLong);
  pad_index = at::tensor(pad, at::kLong).to(device);
  unpad_index = at::tensor(unpad, at::kLong).to(device);
  key_mask = at::arange(max_seqlen).lt(seqlens.unsqueeze(1)).view({batch_size, 1, 1, max_seqlen}).to(device);
}

at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            int64_t num_heads,
                            const SequenceLayout& layout,
                            double dropout_p,
                            const RandomKey& random) {
  const int64_t hidden = query.size(1), head_size = hidden / num_heads;
  const auto pad = [&](const at::Tensor& rows) {  // [T, H] -> [B, heads, max_seqlen, head_size]
    return rows.index_select(0, layout.pad_index)
        .view({layout.batch_size, layout.max_seqlen, num_heads, head_size})
        .transpose(1, 2);
  };
  const auto q = pad(query), k = pad(key), v = pad(value);
  at::Tensor context;  // [B, heads, max_seqlen, head_size]
  if (dropout_p == 0 && !query.is_cpu()) {  // on CPU, its kernel multiplies half tensors in a plain loop
    context = at::scaled_dot_product_attention(q, k, v, layout.key_mask);
  } else {
    const auto scores = at::matmul(q * (1 / std::sqrt(static_cast<double>(head_size))), k.transpose(2, 3));
    const auto weights =
        scores.masked_fill(layout.key_mask.logical_not(), -std::numeric_limits<double>::infinity()).softmax(-1);
    context = at::matmul(dropout(weights, dropout_p, random), v);
  }
  return context.transpose(1, 2)
      .reshape({layout.batch_size * layout.max_seqlen, hidden})
      .index_select(0, layout.unpad_index);
}

}  // namespace mezzo::kernels
