#include "kernels/cpu/attention_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/cpu/share_out.h"
#include "kernels/cpu/tensor_spans.h"

namespace mezzo::kernels::cpu {
namespace {

/// A span from element `first` on.
template <class AnySpan>
AnySpan from(AnySpan span, int64_t first) {
  const int64_t size = span.element == Element::kFloat ? 4 : 2;
  using Byte = std::conditional_t<std::is_same_v<AnySpan, Span>, char, const char>;
  return {static_cast<Byte*>(span.data) + first * size, span.element};
}

/// Tasks for each thread, roughly, so that all end at about the same time.
constexpr int64_t kTurnsOfAThread = 16;

/// What all tiles of an attention share, and how they differ.
class Tiles {
 public:
  explicit Tiles(const PackedAttention& attention)
      : attention_(attention),
        hidden_(attention.key.size(1)),
        head_size_(hidden_ / attention.num_heads),
        only_first_(attention.query.size(0) != attention.key.size(0)),
        query_bias_(as_float(attention.biases.query)),
        key_bias_(as_float(attention.biases.key)),
        value_bias_(as_float(attention.biases.value)) {
    order_.resize(attention.sequences.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
      return attention.sequences[a].num_tokens > attention.sequences[b].num_tokens;
    });
  }

  /// First row of sequence `b` among the queries.
  int64_t query_row(int64_t b) const { return only_first_ ? b : attention_.sequences[b].first_row; }

  /// `log_sum_exp` and `output` may be undefined.
  AttentionTile tile(int64_t b, int64_t head, const at::Tensor& log_sum_exp, const at::Tensor& output) const {
    const Sequence& sequence = attention_.sequences[b];
    const int64_t column = head * head_size_, heads = attention_.num_heads;
    const int64_t queries = query_row(b) * hidden_ + column, keys = sequence.first_row * hidden_ + column;
    return {.query = from(read_span(attention_.query), queries),
            .key = from(read_span(attention_.key), keys),
            .value = from(read_span(attention_.value), keys),
            .query_stride = hidden_,
            .key_stride = hidden_,
            .value_stride = hidden_,
            .query_bias = query_bias_.const_data_ptr<float>() + column,
            .key_bias = key_bias_.const_data_ptr<float>() + column,
            .value_bias = value_bias_.const_data_ptr<float>() + column,
            .num_queries = only_first_ ? 1 : sequence.num_tokens,
            .num_keys = sequence.num_tokens,
            .head_size = head_size_,
            .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_size_))),
            .dropout = dropout_of(attention_.dropout),
            .first_query_number = static_cast<uint32_t>(sequence.first_row * heads + head),
            .query_number_step = static_cast<uint32_t>(heads),
            .output = output.defined() ? from(write_span(output), queries) : Span{},
            .output_stride = hidden_,
            .log_sum_exp =
                log_sum_exp.defined() ? log_sum_exp.mutable_data_ptr<float>() + query_row(b) * heads + head : nullptr};
  }

  /// Calls `task(b, head, scratch)` for every sequence and head, the longest sequences first. A thread takes
  /// neighbouring heads, as many as leave enough for the others, so that one can read ahead for the next.
  template <class Task>
  void for_each(const Task& task) const {
    const int64_t count = static_cast<int64_t>(order_.size()), heads = attention_.num_heads;
    const int64_t parts = std::clamp<int64_t>(kTurnsOfAThread * at::get_num_threads() / count, 1, heads);
    const int64_t longest = attention_.sequences[order_.front()].num_tokens;
    share_out(count * parts, [&](const auto& next) {
      std::vector<float> scratch(simd_kernels().attention_scratch(longest, head_size_));
      for (int64_t i = next(); i >= 0; i = next()) {
        for (int64_t part = i % parts, head = heads * part / parts; head < heads * (part + 1) / parts; ++head) {
          task(order_[i / parts], head, scratch.data());
        }
      }
    });
  }

  /// Room for rows that tasks write, shaped as the queries, or as the keys and values. Rows of no sequence, which they
  /// leave alone, are zero.
  at::Tensor room(const at::Tensor& like) const {
    auto rows = at::empty_like(like);
    if (like.size(0) != attention_.key.size(0)) {
      return rows;  // the first tokens of all sequences
    }
    const int64_t row_size = static_cast<int64_t>(rows.nbytes()) / std::max<int64_t>(rows.size(0), 1);
    int64_t end = 0;  // of the sequences so far
    const auto clear_until = [&](int64_t row) {
      std::memset(static_cast<char*>(rows.mutable_data_ptr()) + end * row_size, 0,
                  static_cast<size_t>((row - end) * row_size));
    };
    for (const Sequence& sequence : attention_.sequences) {
      clear_until(sequence.first_row);
      end = sequence.first_row + sequence.num_tokens;
    }
    clear_until(rows.size(0));
    return rows;
  }

  int64_t hidden() const { return hidden_; }
  int64_t head_size() const { return head_size_; }

 private:
  const PackedAttention& attention_;
  int64_t hidden_, head_size_;
  bool only_first_;
  at::Tensor query_bias_, key_bias_, value_bias_;
  std::vector<int64_t> order_;
};

}  // namespace

at::Tensor packed_attention(const PackedAttention& attention, at::Tensor* log_sum_exp) {
  const Tiles tiles(attention);
  const auto output = tiles.room(attention.query);
  at::Tensor sums;
  if (log_sum_exp != nullptr) {
    sums = *log_sum_exp = at::empty({attention.query.size(0), attention.num_heads}, at::kFloat);
  }
  tiles.for_each([&](int64_t b, int64_t head, float* scratch) {
    simd_kernels().attention(tiles.tile(b, head, sums, output), scratch);
  });
  return output;
}

AttentionGradients packed_attention_backward(const PackedAttention& attention,
                                             const at::Tensor& log_sum_exp,
                                             const at::Tensor& grad) {
  const Tiles tiles(attention);
  const int64_t hidden = tiles.hidden();
  AttentionGradients result{tiles.room(attention.query), tiles.room(attention.key), tiles.room(attention.value), {}};
  const auto sums = at::empty({static_cast<int64_t>(attention.sequences.size()), 3, hidden}, at::kFloat);
  tiles.for_each([&](int64_t b, int64_t head, float* scratch) {
    const int64_t column = head * tiles.head_size();
    const int64_t queries = tiles.query_row(b) * hidden + column;
    const int64_t keys = attention.sequences[b].first_row * hidden + column;
    const AttentionTileBackward op{.forward = tiles.tile(b, head, log_sum_exp, {}),
                                   .grad_output = from(read_span(grad), queries),
                                   .grad_query = from(write_span(result.query), queries),
                                   .grad_key = from(write_span(result.key), keys),
                                   .grad_value = from(write_span(result.value), keys),
                                   .sums = sums.mutable_data_ptr<float>() + b * 3 * hidden + column,
                                   .sum_stride = hidden};
    simd_kernels().attention_backward(op, scratch);
  });
  const auto totals = sums.sum(0);
  result.biases = {totals.select(0, 0), totals.select(0, 1), totals.select(0, 2)};
  return result;
}

}  // namespace mezzo::kernels::cpu
