#include "encoder/packed_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "encoder/dropout.h"
#include "kernels/reference/random_words.h"

namespace mezzo::encoder {
namespace {

double scale_of(const AttentionDescription& description, int64_t head_size) {
  const double usual = description.relative.defined() ? description.relative.scale(head_size)
                                                      : 1 / std::sqrt(static_cast<double>(head_size));
  return description.scale.value_or(usual);
}

/// The weights that are kept, of queries that draw as `numbers` and keys in the Philox blocks `blocks`. The shape is
/// their broadcast shape, its last dimension times 4.
at::Tensor keep_mask(const at::Tensor& blocks, const at::Tensor& numbers, const DropoutSite& dropout) {
  const auto words = kernels::reference::random_words(blocks, numbers, reference::step_of(dropout, numbers.device()),
                                                      dropout.key.seed, dropout.key.site);
  return words.flatten(-2).ge(static_cast<int64_t>(std::ldexp(dropout.p, 32)));
}

/// softmax(soft_cap(scale Q K^T + position_scores)) V over the allowed keys.
/// @param position_scores  undefined for none
/// @param keep  [] -> bool: which weights are; not called without dropout
template <class Keep>
at::Tensor attend(const at::Tensor& q,
                  const at::Tensor& k,
                  const at::Tensor& v,
                  const at::Tensor& position_scores,
                  const at::Tensor& allowed,
                  const AttentionDescription& description,
                  const Keep& keep) {
  const double scale = scale_of(description, q.size(-1)), cap = description.soft_cap, p = description.dropout.p;
  if (p == 0 && cap == 0 && q.dim() == 4 && !q.is_cpu() &&
      !position_scores.defined()) {  // on CPU, its kernel multiplies half tensors in a plain loop
    return at::scaled_dot_product_attention(q, k, v, allowed, /*dropout_p=*/0, /*is_causal=*/false, scale);
  }
  auto scores = at::matmul(q * scale, k.transpose(-2, -1));
  if (position_scores.defined()) {
    scores = scores + position_scores;
  }
  if (cap > 0) {
    scores = cap * at::tanh(scores / cap);
  }
  auto weights = scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity()).softmax(-1);
  if (p > 0) {
    weights = at::where(keep(), weights * (1 / (1 - p)), at::zeros({}, weights.options()));
  }
  return at::matmul(weights, v);
}

/// Whether a key is seen, for its place behind the query's, and whether it is there. Rows of padding see
/// themselves: softmax over no key is not a number.
at::Tensor seen(const at::Tensor& behind, const AttentionDescription& description, const at::Tensor& is_there) {
  auto result = is_there.logical_or(behind.eq(0));
  if (description.window) {
    result = result.logical_and(behind.abs().le(*description.window));
  }
  return description.is_causal ? result.logical_and(behind.le(0)) : result;
}

/// The terms that relative positions add to the scores of q and k, padded to [G, heads, L, head_size]. They are
/// multiplied by `scale`: [G, heads, L, L], or undefined.
at::Tensor position_scores_of(const at::Tensor& q,
                              const at::Tensor& k,
                              const RelativePositions& relative,
                              double scale) {
  if (!relative.defined()) {
    return {};
  }
  const int64_t groups = q.size(0), heads = q.size(1), length = q.size(2), head_size = q.size(3);
  const auto by_rows = [&](const at::Tensor& x, const at::Tensor& table) {  // [G, heads, L, R]
    const auto of_heads = table.view({-1, heads, head_size}).permute({1, 2, 0});
    const auto rows = (x * scale).transpose(0, 1).reshape({heads, groups * length, head_size});
    return at::bmm(rows, of_heads).view({heads, groups, length, -1}).transpose(0, 1);
  };
  // Of scores by rows, line i of the result begins at row L - 1 - i of `order`. To read lines of 2 L numbers as lines
  // of 2 L - 1 gives the same column of each. Backward of a gather would sort L * L places of every head.
  const auto skewed = [&](const at::Tensor& scores, const at::Tensor& order) {
    const auto lines = scores.index_select(-1, at::constant_pad_nd(order, {0, 1}));
    return lines.flatten(2)
        .narrow(2, length - 1, length * (2 * length - 1))
        .unflatten(2, {length, 2 * length - 1})
        .narrow(3, 0, length);
  };
  const auto order = relative.rows_for(length);
  at::Tensor total;
  if (relative.key.defined()) {
    total = skewed(by_rows(q, relative.key), order.flip(0));
  }
  if (relative.query.defined()) {
    const auto of_keys = skewed(by_rows(k, relative.query), order).transpose(-1, -2);
    total = total.defined() ? total + of_keys : of_keys;
  }
  return total;
}

/// All queries by all keys: q, k, v padded to [G, heads, L, head_size].
at::Tensor attend_to_all(const at::Tensor& q,
                         const at::Tensor& k,
                         const at::Tensor& v,
                         const SequenceLayout::Group& group,
                         const AttentionDescription& description) {
  const auto options = group.pad_index.options();
  const int64_t heads = q.size(1), length = group.max_seqlen;
  const auto places = at::arange(length, options);
  const auto allowed = description.window || description.is_causal
                           ? seen(places - places.unsqueeze(1), description, group.key_mask)
                           : group.key_mask;
  const auto of_positions = position_scores_of(q, k, description.relative, scale_of(description, q.size(-1)));
  return attend(q, k, v, of_positions, allowed, description, [&] {
    const auto numbers =
        group.pad_index.view({group.size, 1, length, 1}) * heads + at::arange(heads, options).view({1, heads, 1, 1});
    return keep_mask(at::arange((length + 3) / 4, options), numbers, description.dropout).narrow(3, 0, length);
  });
}

/// Blocks of queries: each attends to the block of keys in its place and the two neighbours.
at::Tensor attend_to_neighbours(const at::Tensor& q,
                                const at::Tensor& k,
                                const at::Tensor& v,
                                const SequenceLayout::Group& group,
                                const AttentionDescription& description,
                                int64_t block) {
  const auto options = group.pad_index.options();
  const int64_t heads = q.size(1), length = group.max_seqlen, count = (length + block - 1) / block,
                rest = count * block - length;
  const auto around = [&](const at::Tensor& x) {  // [G, heads, count, 3 block, head_size]
    return at::constant_pad_nd(x, {0, 0, block, block + rest}).unfold(2, 3 * block, block).transpose(3, 4);
  };
  const auto is_there = at::constant_pad_nd(group.key_mask.view({group.size, length}), {block, block + rest}, false)
                            .unfold(1, 3 * block, block)
                            .view({group.size, 1, count, 1, 3 * block});
  const auto distance = at::arange(3 * block, options) - block - at::arange(block, options).unsqueeze(1);
  const auto context =
      attend(at::constant_pad_nd(q, {0, 0, 0, rest}).unflatten(2, {count, block}), around(k), around(v),
             /*position_scores=*/{}, seen(distance, description, is_there), description, [&] {
               const auto rows = at::constant_pad_nd(group.pad_index.view({group.size, length}), {0, rest});
               const auto numbers = rows.view({group.size, 1, count, block, 1}) * heads +
                                    at::arange(heads, options).view({1, heads, 1, 1, 1});
               const auto blocks =
                   (at::arange(count, options).unsqueeze(1) - 1) * (block / 4) + at::arange(3 * block / 4, options);
               return keep_mask(blocks.clamp_min(0).unsqueeze(1), numbers,
                                description.dropout);  // no key stands before the first
             });
  return context.flatten(2, 3).narrow(2, 0, length);
}

}  // namespace

at::Tensor reference::rotate(const at::Tensor& x, const at::Tensor& table) {
  const int64_t half = x.size(-1) / 2;
  const auto a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  const auto cosine = table.narrow(-1, 0, half), sine = table.narrow(-1, half, half);
  return at::cat({a * cosine - b * sine, b * cosine + a * sine}, -1).to(x.scalar_type());
}

at::Tensor reference::packed_attention(const at::Tensor& query,
                                       const at::Tensor& key,
                                       const at::Tensor& value,
                                       const SequenceLayoutPtr& layout,
                                       const AttentionDescription& description) {
  if (layout->sequences().empty()) {
    return query * 0;  // in the graph, as the result of any other layout is
  }
  if (description.only_first_queries) {
    AttentionDescription of_all = description;
    of_all.only_first_queries = false;
    const auto queries = at::zeros_like(key).index_copy(0, layout->first_rows(), query.to(key.scalar_type()));
    return reference::packed_attention(queries, key, value, layout, of_all).index_select(0, layout->first_rows());
  }
  const int64_t hidden = key.size(1), heads = description.num_heads;
  std::vector<at::Tensor> contexts;
  for (const auto& group : layout->padding().groups) {
    const int64_t length = group.max_seqlen;
    const auto pad = [&](const at::Tensor& rows) {  // [T, H] -> [G, heads, L, head_size]
      return rows.index_select(0, group.pad_index).view({group.size, length, heads, hidden / heads}).transpose(1, 2);
    };
    const auto turned = [&](const at::Tensor& rows) {
      return description.rotary.defined() ? rotate(pad(rows), description.rotary.narrow(0, 0, length)) : pad(rows);
    };
    const int64_t window = description.window.value_or(length), block = (std::max<int64_t>(window, 1) + 3) / 4 * 4;
    const auto q = turned(query), k = turned(key), v = pad(value);
    const auto context = length > 3 * block ? attend_to_neighbours(q, k, v, group, description, block)
                                            : attend_to_all(q, k, v, group, description);
    contexts.push_back(context.transpose(1, 2).reshape({group.size * length, hidden}));
  }
  return at::cat(contexts).index_select(0, layout->padding().unpad_index);
}

}  // namespace mezzo::encoder
