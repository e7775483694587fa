#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include "encoder/cpu/block_ops.h"
#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/share_out.h"
#include "kernels/cpu/tensor_spans.h"

namespace mezzo::encoder::cpu {

using kernels::cpu::read_span;
using kernels::cpu::share_begin;
using kernels::cpu::share_out;
using kernels::cpu::write_span;
namespace {

/// Places of the sequences, thread by thread, in the order in which each should take its own.
struct Order {
  std::vector<int64_t> places, ends;  ///< ends: of each thread's
};

/// The longest of a thread's first. A thread owns the sequences that begin in its part of the rows.
Order longest_first(const std::vector<Sequence>& sequences, int64_t rows) {
  Order order;
  const int64_t threads = at::get_num_threads();
  order.places.resize(sequences.size());
  std::iota(order.places.begin(), order.places.end(), 0);
  auto begin = order.places.begin();
  for (int64_t thread = 0; thread < threads; ++thread) {
    const int64_t rows_end = share_begin(rows, thread + 1, threads);
    const auto end =
        std::partition_point(begin, order.places.end(), [&](int64_t b) { return sequences[b].first_row < rows_end; });
    std::stable_sort(begin, end,
                     [&](int64_t a, int64_t b) { return sequences[a].num_tokens > sequences[b].num_tokens; });
    order.ends.push_back(end - order.places.begin());
    begin = end;
  }
  return order;
}

/// Tokens of the longest; 0 if there is none.
int64_t longest(const std::vector<Sequence>& sequences) {
  int64_t most = 0;
  for (const Sequence& sequence : sequences) {
    most = std::max(most, sequence.num_tokens);
  }
  return most;
}

/// Room for rows of sequences, to be written. Those of none are zero.
at::Tensor room(const std::vector<Sequence>& sequences, at::IntArrayRef sizes, at::ScalarType dtype) {
  auto rows = at::empty(sizes, dtype);
  const int64_t row_size = static_cast<int64_t>(rows.nbytes()) / std::max<int64_t>(rows.size(0), 1);
  int64_t end = 0;  // of the sequences so far
  const auto clear_until = [&](int64_t row) {
    if (row > end) {
      std::memset(static_cast<char*>(rows.mutable_data_ptr()) + end * row_size, 0,
                  static_cast<size_t>((row - end) * row_size));
    }
  };
  for (const Sequence& sequence : sequences) {
    clear_until(sequence.first_row);
    end = sequence.first_row + sequence.num_tokens;
  }
  clear_until(rows.size(0));
  return rows;
}

/// A vector's elements from `first` on; nullptr of one that is undefined.
const float* floats_of(const at::Tensor& vector, int64_t first = 0) {
  return vector.defined() ? vector.const_data_ptr<float>() + first : nullptr;
}

at::Tensor bias_if_defined(const at::Tensor& bias, at::ScalarType dtype) {
  return bias.defined() ? rounded_bias(bias, dtype) : bias;
}

float* part_of(const at::Tensor& vector, int64_t first) {
  return vector.defined() ? vector.mutable_data_ptr<float>() + first : nullptr;
}

/// Tasks for each thread, roughly, so that all end at about the same time.
constexpr int64_t kTurnsOfAThread = 16;

/// Parts of a batch, at most, whose gradients of relative positions are summed apart. The number does not depend on the
/// threads, so gradients do not change with them. It is small, since each part takes memory.
constexpr int64_t kMostParts = 8;

/// The values that all tiles of an attention share, and their differences.
class Tiles {
 public:
  explicit Tiles(const AttentionArguments& attention)
      : attention_(attention),
        rule_(attention.rule()),
        hidden_(attention.key.size(1)),
        query_bias_(bias_if_defined(attention.biases.query, attention.key.scalar_type())),
        key_bias_(bias_if_defined(attention.biases.key, attention.key.scalar_type())),
        value_bias_(bias_if_defined(attention.biases.value, attention.key.scalar_type())),
        rotary_(attention.description.rotary.defined() ? as_float(attention.description.rotary) : at::Tensor()),
        order_(longest_first(attention.layout->sequences(), attention.key.size(0))) {}

  /// `log_sum_exp` and `output` may be undefined.
  AttentionTile tile(int64_t b, int64_t head, const at::Tensor& log_sum_exp, const at::Tensor& output) const {
    const Sequence& sequence = attention_.layout->sequences()[b];
    const int64_t column = head * head_size(), heads = rule_.num_heads, first_query = this->first_query(b);
    const auto elements = [&](const at::Tensor& rows, int64_t first_row) {
      return read_span(rows, first_row * rows.stride(0) + column);
    };
    return {.query = elements(attention_.query, first_query),
            .key = elements(attention_.key, sequence.first_row),
            .value = elements(attention_.value, sequence.first_row),
            .values_are_keys = false,
            .query_stride = attention_.query.stride(0),
            .key_stride = attention_.key.stride(0),
            .value_stride = attention_.value.stride(0),
            .query_bias = floats_of(query_bias_, column),
            .key_bias = floats_of(key_bias_, column),
            .value_bias = floats_of(value_bias_, column),
            .num_queries = rule_.only_first_queries ? 1 : sequence.num_tokens,
            .num_keys = sequence.num_tokens,
            .head_size = head_size(),
            .scale = rule_.scale,
            .soft_cap = rule_.soft_cap,
            .dropout = dropout_of(attention_.description.dropout),
            .first_query_number = static_cast<uint32_t>(sequence.first_row * heads + head),
            .query_number_step = static_cast<uint32_t>(heads),
            .rotary = floats_of(rotary_),
            .keys_before = std::min(rule_.keys_before, sequence.num_tokens),
            .keys_after = std::min(rule_.keys_after, sequence.num_tokens),
            .output = output.defined() ? write_span(output, first_query * hidden_ + column) : Span{},
            .output_stride = hidden_,
            .log_sum_exp = part_of(log_sum_exp, first_query * heads + head),
            .weight_sums = nullptr,
            .relative = relative_tile(sequence.num_tokens, column)};
  }

  RelativeTile relative_tile(int64_t tokens, int64_t column) const {
    const auto& relative = attention_.description.relative;
    if (!relative.defined()) {
      return {};
    }
    const int64_t* const rows = relative.rows.const_data_ptr<int64_t>() + relative.rows.size(0) / 2;
    const int64_t first = rows[1 - tokens], last = rows[rule_.only_first_queries ? 0 : tokens - 1];
    const auto elements = [&](const at::Tensor& table) {
      return table.defined() ? read_span(table, first * hidden_ + column) : ConstSpan{};
    };
    return {.key = elements(relative.key),
            .query = elements(relative.query),
            .key_stride = hidden_,
            .query_stride = hidden_,
            .num_rows = last - first + 1,
            .rows = rows,
            .first_row = first};
  }

  /// Calls `task(b, head, scratch)` for every sequence and head, the longest sequences first.
  /// A thread takes neighbouring heads, as many as leave enough for the others, so that one
  /// can read ahead for the next.
  template <class Task>
  void for_each(const Task& task) const {
    const int64_t count = static_cast<int64_t>(order_.places.size()), heads = rule_.num_heads;
    if (count == 0) {
      return;
    }
    const int64_t parts = std::clamp<int64_t>(kTurnsOfAThread * at::get_num_threads() / count, 1, heads);
    auto ends = order_.ends;
    for (int64_t& end : ends) {
      end *= parts;
    }
    const int64_t scratch_size = this->scratch_size();
    share_out(ends, [&](const auto& next) {
      const at::Tensor scratch = at::empty({scratch_size}, at::kFloat);
      for (int64_t i = next(); i >= 0; i = next()) {
        for (int64_t part = i % parts, head = heads * part / parts; head < heads * (part + 1) / parts; ++head) {
          task(order_.places[i / parts], head, scratch.mutable_data_ptr<float>());
        }
      }
    });
  }

  /// Calls `task(b, head, part, scratch)` for every sequence and head. Calls of one part and head follow each other.
  template <class Task>
  void for_each_of_parts(const Task& task) const {
    const auto& sequences = attention_.layout->sequences();
    const int64_t rows = attention_.key.size(0), heads = rule_.num_heads, scratch_size = this->scratch_size(),
                  parts = this->parts();
    const auto begin_of = [&](int64_t part) {
      const int64_t first_row = share_begin(rows, part, parts);
      return std::partition_point(sequences.begin(), sequences.end(),
                                  [&](const Sequence& sequence) { return sequence.first_row < first_row; }) -
             sequences.begin();
    };
    share_out(parts * heads, [&](const auto& next) {
      const at::Tensor scratch = at::empty({scratch_size}, at::kFloat);
      for (int64_t i = next(); i >= 0; i = next()) {
        const int64_t part = i / heads, end = part + 1 < parts ? begin_of(part + 1) : std::ssize(sequences);
        for (int64_t b = begin_of(part); b < end; ++b) {
          task(b, i % heads, part, scratch.mutable_data_ptr<float>());
        }
      }
    });
  }

  int64_t parts() const { return std::min<int64_t>(kMostParts, std::ssize(attention_.layout->sequences())); }

  /// The row of sequence b's first query.
  int64_t first_query(int64_t b) const {
    return rule_.only_first_queries ? b : attention_.layout->sequences()[b].first_row;
  }

  /// Room for a row a query, as `query` has them.
  at::Tensor room_of_queries() const {
    const auto& query = attention_.query;
    return rule_.only_first_queries ? at::empty(query.sizes(), query.scalar_type()) : room_of_tokens(hidden_);
  }

  at::Tensor room_of_tokens(int64_t columns) const {
    return cpu::room(attention_.layout->sequences(), {attention_.key.size(0), columns}, attention_.key.scalar_type());
  }

  /// Gradients lie as the inputs do.
  AttentionGradients room_for_gradients() const {
    const int64_t columns = attention_.key.stride(0);
    if (columns == hidden_) {
      return {room_of_queries(), room_of_tokens(hidden_), room_of_tokens(hidden_), {}};
    }
    const auto all = room_of_tokens(columns);
    return {rule_.only_first_queries ? room_of_queries() : all.narrow(1, 0, hidden_),
            all.narrow(1, columns - 2 * hidden_, hidden_),
            all.narrow(1, columns - hidden_, hidden_),
            {},
            all};
  }

  int64_t hidden() const { return hidden_; }
  int64_t head_size() const { return rule_.head_size; }

 private:
  int64_t scratch_size() const {
    const int64_t tokens = longest(attention_.layout->sequences());
    int64_t positions = 0;
    if (attention_.description.relative.defined() &&
        tokens > 0) {  // shorter sequences meet some of the rows of the longest
      const auto& rows = attention_.description.relative.rows;
      const int64_t* const nearest = rows.const_data_ptr<int64_t>() + rows.size(0) / 2;
      positions = nearest[tokens - 1] - nearest[1 - tokens] + 1;
    }
    return simd_kernels().attention_scratch(rule_.only_first_queries ? 1 : tokens, tokens, head_size(), positions,
                                            /*values_are_keys=*/false);
  }

  const AttentionArguments& attention_;
  AttentionRule rule_;
  int64_t hidden_;
  at::Tensor query_bias_, key_bias_, value_bias_, rotary_;
  Order order_;
};

}  // namespace

at::Tensor packed_attention(const AttentionArguments& attention, at::Tensor* log_sum_exp) {
  const Tiles tiles(attention);
  const auto output = tiles.room_of_queries();
  at::Tensor sums;
  if (log_sum_exp != nullptr) {
    sums = *log_sum_exp = at::empty({attention.query.size(0), attention.description.num_heads}, at::kFloat);
  }
  tiles.for_each([&](int64_t b, int64_t head, float* scratch) {
    simd_kernels().attention(tiles.tile(b, head, sums, output), scratch);
  });
  return output;
}

AttentionGradients packed_attention_backward(const AttentionArguments& attention,
                                             const at::Tensor& output,
                                             const at::Tensor& log_sum_exp,
                                             const at::Tensor& grad) {
  const Tiles tiles(attention);
  const int64_t hidden = tiles.hidden();
  AttentionGradients result = tiles.room_for_gradients();
  at::Tensor sums;
  if (attention.biases.query.defined()) {
    sums = at::empty({static_cast<int64_t>(attention.layout->sequences().size()), 3, hidden}, at::kFloat);
  }
  const auto& relative = attention.description.relative;
  const auto room_of_parts = [&](const at::Tensor& table) {
    return table.defined() ? at::zeros({tiles.parts(), table.size(0), hidden}, at::kFloat) : at::Tensor();
  };
  const auto relative_key = room_of_parts(relative.key), relative_query = room_of_parts(relative.query);
  const auto task = [&](int64_t b, int64_t head, int64_t part, float* scratch) {
    const int64_t column = head * tiles.head_size(), first_query = tiles.first_query(b),
                  first_key = attention.layout->sequences()[b].first_row;
    const auto elements = [&](const at::Tensor& rows, int64_t first_row) {
      return write_span(rows, first_row * rows.stride(0) + column);
    };
    const auto forward = tiles.tile(b, head, log_sum_exp, {});
    const auto in_part = [&](const at::Tensor& grads) {
      return part_of(
          grads,
          (part * (relative.defined() ? relative.num_rows() : 0) + forward.relative.first_row) * hidden + column);
    };
    const AttentionTileBackward op{.forward = forward,
                                   .grad_output = read_span(grad, first_query * hidden + column),
                                   .output = read_span(output, first_query * hidden + column),
                                   .grad_weight_sums = nullptr,
                                   .grad_query = elements(result.query, first_query),
                                   .grad_key = elements(result.key, first_key),
                                   .grad_value = elements(result.value, first_key),
                                   .sums = part_of(sums, b * 3 * hidden + column),
                                   .sum_stride = hidden,
                                   .grad_relative_key = in_part(relative_key),
                                   .grad_relative_query = in_part(relative_query),
                                   .relative_stride = hidden};
    simd_kernels().attention_backward(op, scratch);
  };
  if (relative.defined()) {
    tiles.for_each_of_parts(task);
    result.relative_key = relative_key.defined() ? relative_key.sum(0) : at::Tensor();
    result.relative_query = relative_query.defined() ? relative_query.sum(0) : at::Tensor();
  } else {
    tiles.for_each([&](int64_t b, int64_t head, float* scratch) { task(b, head, 0, scratch); });
  }
  if (!sums.defined()) {
    return result;
  }
  const auto totals = sums.sum(0);
  result.biases = {totals.select(0, 0), totals.select(0, 1), totals.select(0, 2)};
  return result;
}

namespace {

/// The tile of sequence `b`, whose queries are the heads'. Undefined tensors are nullptr in it.
AttentionTile first_token_tile(const FirstTokenAttention& attention,
                               int64_t b,
                               const at::Tensor& log_sum_exp,
                               const WeightedRows& output) {
  const Sequence& sequence = attention.layout->sequences()[b];
  const int64_t heads = attention.query.size(0), hidden = attention.rows.size(1), of_head = attention.query.stride(0);
  return {.query = read_span(attention.query, b * hidden),
          .key = read_span(attention.rows, sequence.first_row * hidden),
          .value = {},
          .values_are_keys = true,
          .query_stride = of_head,
          .key_stride = hidden,
          .value_stride = 0,
          .query_bias = nullptr,
          .key_bias = nullptr,
          .value_bias = nullptr,
          .num_queries = heads,
          .num_keys = sequence.num_tokens,
          .head_size = hidden,
          .scale = attention.scale,
          .soft_cap = 0,
          .dropout = dropout_of(attention.dropout),
          .first_query_number = static_cast<uint32_t>(sequence.first_row * heads),
          .query_number_step = 1,
          .rotary = nullptr,
          .keys_before = sequence.num_tokens + heads,  // every query sees every key
          .keys_after = sequence.num_tokens + heads,
          .output = output.rows.defined() ? write_span(output.rows, b * hidden) : Span{},
          .output_stride = of_head,
          .log_sum_exp = part_of(log_sum_exp, b * heads),
          .weight_sums = part_of(output.weight_sums, b * heads)};
}

/// Calls `task(b, scratch)` for every sequence.
template <class Task>
void for_each_sequence(const FirstTokenAttention& attention, const Task& task) {
  const auto order = longest_first(attention.layout->sequences(), attention.rows.size(0));
  const int64_t scratch_size =
      simd_kernels().attention_scratch(attention.query.size(0), longest(attention.layout->sequences()),
                                       attention.rows.size(1), /*relative_rows=*/0, /*values_are_keys=*/true);
  share_out(order.ends, [&](const auto& next) {
    const at::Tensor scratch = at::empty({scratch_size}, at::kFloat);
    for (int64_t i = next(); i >= 0; i = next()) {
      task(order.places[i], scratch.mutable_data_ptr<float>());
    }
  });
}

}  // namespace

WeightedRows first_token_attention(const FirstTokenAttention& attention, at::Tensor* log_sum_exp) {
  const int64_t heads = attention.query.size(0), sequences = attention.query.size(1);
  const WeightedRows output{at::empty_like(attention.query), at::empty({sequences, heads}, at::kFloat)};
  at::Tensor sums;
  if (log_sum_exp != nullptr) {
    sums = *log_sum_exp = at::empty({sequences, heads}, at::kFloat);
  }
  for_each_sequence(attention, [&](int64_t b, float* scratch) {
    simd_kernels().attention(first_token_tile(attention, b, sums, output), scratch);
  });
  return output;
}

FirstTokenGradients first_token_attention_backward(const FirstTokenAttention& attention,
                                                   const at::Tensor& log_sum_exp,
                                                   const WeightedRows& grad,
                                                   at::ScalarType rows_dtype) {
  const int64_t heads = attention.query.size(0), hidden = attention.rows.size(1);
  const FirstTokenGradients result{at::empty_like(attention.query),
                                   room(attention.layout->sequences(), attention.rows.sizes(), rows_dtype)};
  for_each_sequence(attention, [&](int64_t b, float* scratch) {
    const AttentionTileBackward op{
        .forward = first_token_tile(attention, b, log_sum_exp, {}),
        .grad_output = read_span(grad.rows, b * hidden),
        .output = {},
        .grad_weight_sums = part_of(grad.weight_sums, b * heads),
        .grad_query = write_span(result.query, b * hidden),
        .grad_key = write_span(result.rows, attention.layout->sequences()[b].first_row * hidden),
        .grad_value = {},
        .sums = nullptr,
        .sum_stride = 0};
    simd_kernels().attention_backward(op, scratch);
  });
  return result;
}

bool takes_heads(const at::Device&, at::ScalarType, int64_t, bool) { return true; }

#define MEZZO_ENTRY(name) .name = name,
const BlockOps kBlockOps = {.takes_columns = false,
                            MEZZO_FOR_BLOCK_OPS(MEZZO_ENTRY) MEZZO_ENTRY(first_token_attention)
                                MEZZO_ENTRY(first_token_attention_backward)};
#undef MEZZO_ENTRY

}  // namespace mezzo::encoder::cpu
