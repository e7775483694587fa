#include "encoder/packed_attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/random_words.h"

namespace mezzo::encoder {
namespace {

/// [G, heads, L, L]: which weights are kept.
at::Tensor keep_mask(const SequenceLayout::Group& group, int64_t num_heads, const DropoutSite& dropout) {
  const auto options = group.pad_index.options();
  const int64_t blocks = (group.max_seqlen + 3) / 4;
  const auto rows = group.pad_index.view({group.size, 1, group.max_seqlen, 1});
  const auto number = rows * num_heads + at::arange(num_heads, options).view({1, num_heads, 1, 1});
  const auto words = kernels::reference::random_words(at::arange(blocks, options), number,
                                                      kernels::reference::step_of(dropout, options.device()),
                                                      dropout.key.seed, dropout.key.site);  // [G, heads, L, blocks, 4]
  return words.flatten(3).narrow(3, 0, group.max_seqlen).ge(static_cast<int64_t>(std::ldexp(dropout.p, 32)));
}

/// Of queries, keys and values padded to [G, heads, L, head_size].
at::Tensor attend(const at::Tensor& q,
                  const at::Tensor& k,
                  const at::Tensor& v,
                  const SequenceLayout::Group& group,
                  const DropoutSite& dropout) {
  if (dropout.p == 0 && !q.is_cpu()) {  // on CPU, its kernel multiplies half tensors in a plain loop
    return at::scaled_dot_product_attention(q, k, v, group.key_mask);
  }
  const auto scores = at::matmul(q * (1 / std::sqrt(static_cast<double>(q.size(3)))), k.transpose(2, 3));
  const auto masked = scores.masked_fill(group.key_mask.logical_not(), -std::numeric_limits<double>::infinity());
  auto weights = masked.softmax(-1);
  if (dropout.p > 0) {
    weights = at::where(keep_mask(group, q.size(1), dropout), weights * (1 / (1 - dropout.p)),
                        at::zeros({}, weights.options()));
  }
  return at::matmul(weights, v);
}

}  // namespace

at::Tensor reference::packed_attention(const at::Tensor& query,
                                       const at::Tensor& key,
                                       const at::Tensor& value,
                                       int64_t num_heads,
                                       const SequenceLayoutPtr& layout,
                                       const DropoutSite& dropout) {
  if (layout->sequences().empty()) {
    return query * 0;  // in the graph, as the result of any other layout is
  }
  const int64_t hidden = query.size(1);
  std::vector<at::Tensor> contexts;
  for (const auto& group : layout->padding().groups) {
    const auto pad = [&](const at::Tensor& rows) {  // [T, H] -> [G, heads, L, head_size]
      return rows.index_select(0, group.pad_index)
          .view({group.size, group.max_seqlen, num_heads, hidden / num_heads})
          .transpose(1, 2);
    };
    const auto context = attend(pad(query), pad(key), pad(value), group, dropout);
    contexts.push_back(context.transpose(1, 2).reshape({group.size * group.max_seqlen, hidden}));
  }
  return at::cat(contexts).index_select(0, layout->padding().unpad_index);
}

}  // namespace mezzo::encoder
