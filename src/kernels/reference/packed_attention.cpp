#include "kernels/packed_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/dropout.h"

namespace mezzo::kernels {
namespace {

/// A sequence joins a group if it fills at least this share of the group's longest.
constexpr double kLeastFill = 0.75;

/// The sequences by length, longest first, cut into groups of similar length.
std::vector<std::vector<int64_t>> group_by_length(const at::TensorAccessor<int32_t, 1>& seqlens) {
  std::vector<int64_t> order(seqlens.size(0));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return seqlens[a] > seqlens[b]; });
  std::vector<std::vector<int64_t>> groups;
  for (const int64_t sequence : order) {
    if (groups.empty() || seqlens[sequence] < kLeastFill * seqlens[groups.back().front()]) {
      groups.emplace_back();
    }
    groups.back().push_back(sequence);
  }
  return groups;
}

/// Of queries, keys and values padded to [G, heads, L, head_size].
at::Tensor attend(const at::Tensor& q,
                  const at::Tensor& k,
                  const at::Tensor& v,
                  const at::Tensor& key_mask,
                  double dropout_p,
                  const RandomKey& random) {
  if (dropout_p == 0 && !q.is_cpu()) {  // on CPU, its kernel multiplies half tensors in a plain loop
    return at::scaled_dot_product_attention(q, k, v, key_mask);
  }
  const auto scores = at::matmul(q * (1 / std::sqrt(static_cast<double>(q.size(3)))), k.transpose(2, 3));
  const auto weights = scores.masked_fill(key_mask.logical_not(), -std::numeric_limits<double>::infinity()).softmax(-1);
  return at::matmul(dropout(weights, dropout_p, random), v);
}

}  // namespace

SequenceLayout::SequenceLayout(const at::Tensor& cu_seqlens,
                               const at::Tensor& seqlens,
                               int64_t num_rows,
                               const at::Device& device)
    : first_rows(cu_seqlens.narrow(0, 0, seqlens.size(0)).to(device, at::kLong)) {
  const auto first = cu_seqlens.accessor<int32_t, 1>();
  const auto counts = seqlens.accessor<int32_t, 1>();
  std::vector<int64_t> unpad(num_rows, 0);
  int64_t padded_rows = 0;
  for (const auto& members : group_by_length(counts)) {
    const auto size = static_cast<int64_t>(members.size()), longest = int64_t{counts[members.front()]};
    std::vector<int64_t> pad(size * longest, 0);
    auto key_mask = at::zeros({size, 1, 1, longest}, at::kBool);
    for (int64_t g = 0; g < size; ++g) {
      const int64_t begin = first[members[g]], count = counts[members[g]];
      for (int64_t i = 0; i < count; ++i) {
        pad[g * longest + i] = begin + i;
        unpad[begin + i] = padded_rows + g * longest + i;
      }
      key_mask.select(0, g).narrow(2, 0, count).fill_(true);
    }
    groups.push_back({size, longest, at::tensor(pad, at::kLong).to(device), key_mask.to(device)});
    padded_rows += size * longest;
  }
  unpad_index = at::tensor(unpad, at::kLong).to(device);
}

at::Tensor packed_attention(const at::Tensor& query,
                            const at::Tensor& key,
                            const at::Tensor& value,
                            int64_t num_heads,
                            const SequenceLayout& layout,
                            double dropout_p,
                            const RandomKey& random) {
  const int64_t hidden = query.size(1);
  std::vector<at::Tensor> contexts;
  for (size_t number = 0; number < layout.groups.size(); ++number) {
    const auto& group = layout.groups[number];
    const auto pad = [&](const at::Tensor& rows) {  // [T, H] -> [G, heads, L, head_size]
      return rows.index_select(0, group.pad_index)
          .view({group.size, group.max_seqlen, num_heads, hidden / num_heads})
          .transpose(1, 2);
    };
    RandomKey group_random = random;  // each group draws a mask of its own
    group_random.site |= static_cast<uint32_t>(number) << 16;
    const auto context = attend(pad(query), pad(key), pad(value), group.key_mask, dropout_p, group_random);
    contexts.push_back(context.transpose(1, 2).reshape({group.size * group.max_seqlen, hidden}));
  }
  return at::cat(contexts).index_select(0, layout.unpad_index);
}

}  // namespace mezzo::kernels
