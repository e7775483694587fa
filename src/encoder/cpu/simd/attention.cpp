#include <cstddef>

#include "encoder/cpu/simd/dropout_mask.h"
#include "encoder/cpu/simd/exp.h"
#include "encoder/cpu/simd/relative_scores.h"
#include "encoder/cpu/simd/rows.h"
#include "encoder/cpu/simd/table.h"
#include "encoder/cpu/simd/words.h"
#include "kernels/cpu/simd/convert.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

/// Turns rows `first` ... of one head by their places, in place; or back.
template <bool kBack>
void rotate(const AttentionTile& tile, int64_t first, int64_t rows, const Matrix& matrix) {
  const int64_t half = tile.head_size / 2;
  for (int64_t i = 0; i < rows && tile.rotary != nullptr; ++i) {
    float *a = matrix.row(i), *b = a + half;
    const float *cosines = tile.rotary + (first + i) * tile.head_size, *sines = cosines + half;
    for_each_vector(half, [&](int64_t d, auto get, auto put) {
      const Floats x = get(a + d), y = get(b + d), c = get(cosines + d), s = kBack ? -get(sines + d) : get(sines + d);
      put(a + d, x * c - y * s);
      put(b + d, y * c + x * s);
    });
  }
}

void copy_out(const Matrix& from, int64_t first, int64_t rows, int64_t head_size, Span to, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = (first + i) * stride;
    if (float* out = place(to, at, from.row(i)); out != from.row(i)) {
      for_each_vector(head_size, [&](int64_t d, auto get, auto put) { put(out + d, get(from.row(i) + d)); });
    }
    write(from.row(i), to, at, head_size);
  }
}

void add_rows(const Matrix& from, int64_t rows, int64_t columns, float* sums) {
  for (int64_t i = 0; i < rows; ++i) {
    for_each_vector(columns,
                    [&](int64_t d, auto get, auto put) { put(sums + d, get(sums + d) + get(from.row(i) + d)); });
  }
}

void set_zero(float* values, int64_t count) {
  __builtin_memset(values, 0, static_cast<std::size_t>(count) * sizeof(float));
}

/// Keys `begin` to `end` - 1: those that some queries see, from where a run of the masks begins. Rows
/// of scores and weights have a column for each, and are computed in whole vectors: `padded` is a
/// multiple of kWidth, and where a query sees no key there is a score of -inf, then a weight of zero.
struct Keys {
  Keys(const AttentionTile& tile, int64_t first_query, int64_t queries)
      : begin(at_least(0, first_query - tile.window) / kMaskRun * kMaskRun),
        end(at_most(tile.num_keys, first_query + queries + tile.window)) {}
  int64_t count() const { return end - begin; }
  int64_t padded() const { return round_up(count(), kWidth); }
  int64_t begin, end;
};

/// No block of queries sees more.
int64_t most_keys(const AttentionTile& tile) {
  return at_most(tile.num_keys, 2 * tile.window + kQueryBlock + kMaskRun);
}

constexpr float kMinusInf = -__builtin_inff();

void hide_keys(const AttentionTile& tile, int64_t query, const Keys& keys, float* scores) {
  const int64_t first = query - tile.window - keys.begin, end = query + tile.window + 1 - keys.begin;
  for (int64_t j = 0; j < first; ++j) {
    scores[j] = kMinusInf;
  }
  for (int64_t j = at_most(end, keys.count()); j < keys.padded(); ++j) {
    scores[j] = kMinusInf;
  }
}

/// In place: e^(scale * (score - shift)), which is 1 where they are equal. Returns the sum.
float exponentials(float* scores, int64_t padded, float scale, float shift) {
  Floats total{};
  for (int64_t j = 0; j < padded; j += kWidth) {
    const Floats e = exp((load(scores + j) - shift) * scale);
    total += e;
    store(scores + j, e);
  }
  return sum(total);
}

float largest(const float* scores, int64_t padded) {
  Floats most = load(scores);
  for (int64_t j = kWidth; j < padded; j += kWidth) {
    most = max(most, load(scores + j));
  }
  return max(most);
}

void multiply(float* row, const float* by, int64_t padded) {
  for (int64_t j = 0; j < padded; j += kWidth) {
    store(row + j, load(row + j) * load(by + j));
  }
}

void scale_row(float* row, float by, int64_t padded) {
  for (int64_t j = 0; j < padded; j += kWidth) {
    store(row + j, load(row + j) * by);
  }
}

void scale_rows(const Matrix& matrix, int64_t rows, float by, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    scale_row(matrix.row(i), by, round_up(columns, kWidth));
  }
}

/// From the gradient of a query's weights, before dropout, to that of its scaled scores, in place.
void softmax_backward(const float* weights, float* grad, int64_t padded) {
  Floats products{};
  for (int64_t j = 0; j < padded; j += kWidth) {
    products += load(weights + j) * load(grad + j);
  }
  const float mean = sum(products);
  for (int64_t j = 0; j < padded; j += kWidth) {
    store(grad + j, load(weights + j) * (load(grad + j) - mean));
  }
}

float total(const float* row, int64_t padded) {
  Floats totals{};
  for (int64_t j = 0; j < padded; j += kWidth) {
    totals += load(row + j);
  }
  return sum(totals);
}

void add_to_row(float* row, float term, int64_t padded) {
  for (int64_t j = 0; j < padded; j += kWidth) {
    store(row + j, load(row + j) + term);
  }
}

/// The factors of dropout for the weights of queries `first` ..., if there is one.
void mask_rows(const AttentionTile& tile, int64_t first, int64_t rows, const Keys& keys, const Matrix& factors) {
  if (!tile.dropout.is_on) {
    return;
  }
  const int64_t runs = (keys.count() + kMaskRun - 1) / kMaskRun;
  all_dropout_factors(rows * runs, tile.dropout, [&](int64_t i) {
    const int64_t row = i / runs, key = i % runs * kMaskRun;
    const auto number = tile.first_query_number + static_cast<uint32_t>(first + row) * tile.query_number_step;
    return MaskRun{static_cast<uint32_t>((keys.begin + key) / 4), number, factors.row(row) + key};
  });
}

/// Calls body with the kind of words that products of the tile are made of. A lone query would not make up for
/// the rounding of the keys.
template <class Body>
void with_words([[maybe_unused]] const AttentionTile& tile, const Body& body) {
#ifdef __AVX512BF16__
  if (tile.query.element == Element::kBFloat16 && !tile.values_are_keys && tile.num_queries > 1) {
    return body(BFloat16Pairs{});
  }
#endif
  body(FloatWords{});
}

void load_keys(const AttentionTile& tile, const Matrix& to) {
  copy_in(tile.key, tile.key_stride, tile.key_bias, 1, 0, tile.num_keys, tile.head_size, to);
  rotate<false>(tile, 0, tile.num_keys, to);
}

void load_values(const AttentionTile& tile, const Matrix& to) {
  copy_in(tile.value, tile.value_stride, tile.value_bias, 1, 0, tile.num_keys, tile.head_size, to);
}

template <class Words>
void load_queries(const AttentionTile& tile, int64_t first, int64_t rows, const Matrix& to) {
  copy_in(tile.query, tile.query_stride, tile.query_bias, scale_of_queries<Words>(tile), first, rows, tile.head_size,
          to);
  rotate<false>(tile, first, rows, to);
}

/// Scores of a block of queries, or their gradients.
Matrix room_of_scores(const AttentionTile& tile, Arena& arena) {
  return arena.matrix(kQueryBlock, most_keys(tile) + 2 * kMargin).from_column(kMargin);
}

}  // namespace

int64_t attention_scratch(int64_t num_keys, int64_t head_size, int64_t relative_rows) {
  const int64_t keys = round_up(num_keys, kMaskRun) + 16, columns = round_up(head_size, kMaskRun) + 16;
  const int64_t of_block = 3 * (keys + 2 * kMargin) + 6 * columns;
  const int64_t usual = 6 * keys * columns + kQueryBlock * of_block + 1024;
  const int64_t positions = relative_rows + 1;
  return relative_rows == 0 ? usual : usual + positions * (6 * columns + 2 * (keys + kQueryBlock)) + 2 * keys + 1024;
}

namespace {

template <class Words>
void attend(const AttentionTile& tile, float* scratch) {
  const int64_t all = tile.num_keys, columns = tile.head_size;
  const float scale = scale_of_scores<Words>(tile);
  Arena arena(scratch);
  const bool is_one = tile.values_are_keys;
  const auto key = arena.matrix(all, columns), value = is_one ? key : arena.matrix(all, columns);
  const auto key_columns = arena.matrix(columns, all), query_columns = arena.matrix(columns, kQueryBlock);
  const auto query = arena.matrix(kQueryBlock, columns), output = arena.matrix(kQueryBlock, columns);
  const auto weights = room_of_scores(tile, arena), factors = arena.matrix(kQueryBlock, most_keys(tile));

  load_keys(tile, key);
  Words::to_left(key, all, columns);
  transpose(key, all, words_of<Words>(columns), key_columns);
  if (!is_one) {
    load_values(tile, value);
    Words::to_right(value, all, columns, value);
  }
  const RelativeScores<Words> relative(tile, key, key_columns, arena);
  for (int64_t first = 0; first < tile.num_queries; first += kQueryBlock) {
    const int64_t rows = at_most(kQueryBlock, tile.num_queries - first);
    const Keys keys(tile, first, rows);
    load_queries<Words>(tile, first, rows, query);
    Words::to_left(query, rows, columns);
    product<Words, false>(plain(query), key_columns.from_column(keys.begin), rows, columns, keys.count(), weights);
    if (relative.wants_query_columns()) {
      transpose(query, rows, words_of<Words>(columns), query_columns);
    }
    relative.add_to(weights, query_columns, query.data, first, rows);
    mask_rows(tile, first, rows, keys, factors);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = weights.row(i);
      hide_keys(tile, first + i, keys, row);
      const float most = largest(row, keys.padded());
      const float exponential_sum = exponentials(row, keys.padded(), scale, most);
      scale_row(row, 1 / exponential_sum, keys.padded());
      const int64_t number = (first + i) * tile.query_number_step;
      if (tile.log_sum_exp != nullptr) {
        tile.log_sum_exp[number] = most + __builtin_logf(exponential_sum) / scale;
      }
      if (tile.dropout.is_on) {
        multiply(row, factors.row(i), keys.padded());
      }
      if (tile.weight_sums != nullptr) {
        tile.weight_sums[number] = total(row, keys.padded());
      }
    }
    Words::to_left(weights, rows, keys.count());
    product<Words, false>(plain(weights), value.from_row(keys.begin / Words::kValues), rows, keys.count(), columns,
                          output);
    copy_out(output, first, rows, columns, tile.output, tile.output_stride);
  }
}

template <class Words>
void attend_backward(const AttentionTileBackward& op, float* scratch) {
  const AttentionTile& tile = op.forward;
  const int64_t all = tile.num_keys, columns = tile.head_size;
  const float scale = scale_of_scores<Words>(tile);
  Arena arena(scratch);
  const bool is_one = tile.values_are_keys, are_floats = Words::kValues == 1;
  const auto key = arena.matrix(all, columns), key_columns = arena.matrix(columns, all);
  const auto value_columns = is_one ? key_columns : arena.matrix(columns, all);
  const auto grad_key = arena.matrix(all, columns), grad_value = is_one ? grad_key : arena.matrix(all, columns);
  const auto query = arena.matrix(kQueryBlock, columns), grad_output = arena.matrix(kQueryBlock, columns);
  const auto query_room = arena.matrix(kQueryBlock, columns), grad_output_room = arena.matrix(kQueryBlock, columns);
  const auto query_columns = arena.matrix(columns, kQueryBlock);
  const auto weights = room_of_scores(tile, arena), grad_weights = room_of_scores(tile, arena),
             factors = arena.matrix(kQueryBlock, most_keys(tile));

  if (!is_one) {  // then grad_key, not used yet, holds the values
    load_values(tile, grad_key);
    Words::to_left(grad_key, all, columns);
    transpose(grad_key, all, words_of<Words>(columns), value_columns);
    fill_zero(grad_value, all);
  }
  load_keys(tile, key);
  const auto left_key = are_floats ? key : grad_key;
  if (!are_floats) {
    load_keys(tile, left_key);
    Words::to_left(left_key, all, columns);
    Words::to_right(key, all, columns, key);
  }
  transpose(left_key, all, words_of<Words>(columns), key_columns);
  RelativeScores<Words> relative(tile, left_key, key_columns, arena);
  relative.begin_backward(key, grad_weights, arena);
  fill_zero(grad_key, all);
  const auto add_to_sum = [&](int64_t i, const Matrix& rows, int64_t count) {
    if (op.sums != nullptr) {
      add_rows(rows, count, columns, op.sums + i * op.sum_stride);
    }
  };
  for (int64_t i = 0; i < 3 && op.sums != nullptr; ++i) {
    set_zero(op.sums + i * op.sum_stride, columns);
  }
  for (int64_t first = 0; first < tile.num_queries; first += kQueryBlock) {
    const int64_t rows = at_most(kQueryBlock, tile.num_queries - first);
    const Keys keys(tile, first, rows);
    load_queries<Words>(tile, first, rows, query);
    const auto right_query = Words::to_right(query, rows, columns, query_room);
    Words::to_left(query, rows, columns);
    copy_in(op.grad_output, tile.output_stride, nullptr, 1, first, rows, columns, grad_output);
    const auto right_grad_output = Words::to_right(grad_output, rows, columns, grad_output_room);
    Words::to_left(grad_output, rows, columns);
    product<Words, false>(plain(query), key_columns.from_column(keys.begin), rows, columns, keys.count(), weights);
    if (relative.wants_query_columns()) {
      transpose(query, rows, words_of<Words>(columns), query_columns);
    }
    relative.add_to(weights, query_columns, query.data, first, rows);
    product<Words, false>(plain(grad_output), value_columns.from_column(keys.begin), rows, columns, keys.count(),
                          grad_weights);
    mask_rows(tile, first, rows, keys, factors);
    for (int64_t i = 0; i < rows; ++i) {
      float *weight = weights.row(i), *grad = grad_weights.row(i), *factor = factors.row(i);
      const int64_t number = (first + i) * tile.query_number_step;
      hide_keys(tile, first + i, keys, weight);
      exponentials(weight, keys.padded(), scale, tile.log_sum_exp[number]);
      if (op.grad_weight_sums != nullptr) {
        add_to_row(grad, op.grad_weight_sums[number], keys.padded());
      }
      if (tile.dropout.is_on) {
        multiply(grad, factor, keys.padded());
      }
      softmax_backward(weight, grad, keys.padded());
      if (tile.dropout.is_on) {  // as they met the values
        multiply(weight, factor, keys.padded());
      }
    }
    const auto right_weights = Words::to_right(weights, rows, keys.count(), weights);
    product<Words, true>(transposed(right_weights), right_grad_output, keys.count(), rows, columns,
                         grad_value.from_row(keys.begin));
    relative.take_gradient(grad_weights, right_query, first, rows, grad_key);
    const auto right_grad = Words::to_right(grad_weights, rows, keys.count(), weights);
    product<Words, true>(transposed(right_grad), right_query, keys.count(), rows, columns,
                         grad_key.from_row(keys.begin));
    Words::to_left(grad_weights, rows, keys.count());
    product<Words, false>(plain(grad_weights), key.from_row(keys.begin / Words::kValues), rows, keys.count(), columns,
                          query);
    relative.add_to_queries(query, first, rows);
    scale_rows(query, rows, tile.scale, columns);
    rotate<true>(tile, first, rows, query);
    add_to_sum(0, query, rows);
    copy_out(query, first, rows, columns, op.grad_query, tile.query_stride);
  }
  relative.end_backward(grad_key, op);
  scale_rows(grad_key, all, scale, columns);
  rotate<true>(tile, 0, all, grad_key);
  add_to_sum(1, grad_key, all);
  copy_out(grad_key, 0, all, columns, op.grad_key, tile.key_stride);
  if (!is_one) {
    add_to_sum(2, grad_value, all);
    copy_out(grad_value, 0, all, columns, op.grad_value, tile.value_stride);
  }
}

}  // namespace

void attention(const AttentionTile& tile, float* scratch) {
  with_words(tile, [&]<class Words>(Words) { attend<Words>(tile, scratch); });
}

void attention_backward(const AttentionTileBackward& op, float* scratch) {
  with_words(op.forward, [&]<class Words>(Words) { attend_backward<Words>(op, scratch); });
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
