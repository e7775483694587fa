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

/// All rows of `from` to rows `first` ... .
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

struct Range {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
};

/// Keys of a tile that some queries see, from the beginning of a mask's run. Rows of scores and weights have a column
/// for each, and are computed in whole vectors: `padded` is a multiple of kWidth. A key that a query does not see has a
/// score of -inf, then a weight of zero.
struct Keys : Range {
  Keys(const AttentionTile& tile, const Range& all, int64_t first_query, int64_t queries)
      : Range{at_least(all.begin, at_least(0, first_query - tile.keys_before) / kMaskRun * kMaskRun),
              at_most(all.end, first_query + queries + tile.keys_after)},
        in_tile(begin - all.begin) {}
  int64_t padded() const { return round_up(count(), kWidth); }
  int64_t in_tile;  ///< index of the first one in the tile
};

/// Keys that are looked at at a time.
int64_t tile_keys(int64_t num_keys, int64_t relative_rows, bool values_are_keys) {
  return relative_rows > 0 || values_are_keys ? num_keys : at_most(num_keys, kKeyTile);
}

int64_t tile_keys(const AttentionTile& tile) {
  return tile_keys(tile.num_keys, tile.relative.num_rows, tile.values_are_keys);
}

/// Calls body(keys) for each tile of keys.
template <class Body>
void for_each_tile(const AttentionTile& tile, const Body& body) {
  const int64_t step = tile_keys(tile);
  for (int64_t begin = 0; begin < tile.num_keys; begin += step) {
    body(Range{begin, at_most(begin + step, tile.num_keys)});
  }
}

/// Calls body(first, rows, keys) for each block of queries that see some of the tile's keys.
template <class Body>
void for_each_block(const AttentionTile& tile, const Range& all, const Body& body) {
  for (int64_t first = 0; first < tile.num_queries; first += kQueryBlock) {
    const int64_t rows = at_most(kQueryBlock, tile.num_queries - first);
    if (const Keys keys(tile, all, first, rows); keys.begin < keys.end) {
      body(first, rows, keys);
    }
  }
}

constexpr float kMinusInf = -__builtin_inff();

void hide_keys(const AttentionTile& tile, int64_t query, const Keys& keys, float* scores) {
  const int64_t first = at_most(query - tile.keys_before - keys.begin, keys.padded()),
                end = at_least(0, query + tile.keys_after + 1 - keys.begin);
  for (int64_t j = 0; j < first; ++j) {
    scores[j] = kMinusInf;
  }
  for (int64_t j = at_most(end, keys.count()); j < keys.padded(); ++j) {
    scores[j] = kMinusInf;
  }
}

Floats tanh(Floats x) {
  const Floats square = x * x;
  const Floats near =
      x + x * square * (square * (square * (square * (62.0f / 2835) - 17.0f / 315) + 2.0f / 15) - 1.0f / 3);
  return square < 0.0625f ? near : 1.0f - 2.0f / (exp(x + x) + 1.0f);
}

/// Scores, of which `scale` makes what softmax takes, under a soft cap, in place.
/// @param slopes  of the capped scores; nullptr if nobody wants them
void cap_scores(float* scores, float* slopes, int64_t padded, float scale, float cap) {
  for (int64_t j = 0; j < padded; j += kWidth) {
    const Floats t = tanh(load(scores + j) * (scale / cap));
    store(scores + j, t * (cap / scale));
    if (slopes != nullptr) {
      store(slopes + j, 1.0f - t * t);
    }
  }
}

/// In place: e^(scale * (score - shift)), which is 1 if they are equal. Returns the sum.
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

/// The sum of products.
float dot_of(const float* a, const float* b, int64_t padded) {
  Floats products{};
  for (int64_t j = 0; j < padded; j += kWidth) {
    products += load(a + j) * load(b + j);
  }
  return sum(products);
}

/// From the gradient of a query's weights, before dropout, to that of its scaled scores, in place.
/// @param mean  dot_of the weights and the gradient, of all keys
void softmax_backward(const float* weights, float* grad, int64_t padded, float mean) {
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

void load_keys(const AttentionTile& tile, const Range& keys, const Matrix& to) {
  copy_in(tile.key, tile.key_stride, tile.key_bias, 1, keys.begin, keys.count(), tile.head_size, to);
  rotate<false>(tile, keys.begin, keys.count(), to);
}

void load_values(const AttentionTile& tile, const Range& keys, const Matrix& to) {
  copy_in(tile.value, tile.value_stride, tile.value_bias, 1, keys.begin, keys.count(), tile.head_size, to);
}

/// c += a b, or c = a b.
template <class Words>
void product(
    bool adds, const Strided& a, const Matrix& b, int64_t rows, int64_t depth, int64_t columns, const Matrix& c) {
  adds ? product<Words, true>(a, b, rows, depth, columns, c) : product<Words, false>(a, b, rows, depth, columns, c);
}

template <class Words>
void load_queries(const AttentionTile& tile, int64_t first, int64_t rows, const Matrix& to) {
  copy_in(tile.query, tile.query_stride, tile.query_bias, scale_of_queries<Words>(tile), first, rows, tile.head_size,
          to);
  rotate<false>(tile, first, rows, to);
}

/// Columns of scores that a block of queries has, at most.
int64_t most_keys(const AttentionTile& tile) {
  return at_most(tile_keys(tile), tile.keys_before + tile.keys_after + kQueryBlock + kMaskRun);
}

/// Scores of a block of queries, or their gradients.
Matrix room_of_scores(const AttentionTile& tile, Arena& arena) {
  return arena.matrix(kQueryBlock, most_keys(tile) + 2 * kMargin).from_column(kMargin);
}

}  // namespace

int64_t attention_scratch(
    int64_t num_queries, int64_t num_keys, int64_t head_size, int64_t relative_rows, bool values_are_keys) {
  const int64_t keys = round_up(tile_keys(num_keys, relative_rows, values_are_keys), kMaskRun) + 16,
                columns = Arena::stride(head_size);
  const int64_t of_block = 4 * (keys + 2 * kMargin) + 6 * columns;
  const int64_t usual = 6 * keys * columns + kQueryBlock * of_block + num_queries * (columns + 2) + 1024;
  const int64_t positions = relative_rows + 1;
  return relative_rows == 0 ? usual : usual + positions * (6 * columns + 2 * (keys + kQueryBlock)) + 2 * keys + 1024;
}

namespace {

/// The softmax of each query, over the tiles of keys so far.
struct OnlineSoftmax {
  OnlineSoftmax(int64_t queries, Arena& arena) : most(arena.take(queries)), sums(arena.take(queries)) {
    for (int64_t i = 0; i < queries; ++i) {
      most[i] = kMinusInf;
      sums[i] = 0;
    }
  }

  /// Scores of more keys become weights that lack the division by the sum; `output` holds the sums of values, weighted
  /// with those before.
  void add(int64_t query, float* scores, int64_t padded, float scale, float* output, int64_t columns) {
    const float before = most[query], largest_of_tile = largest(scores, padded),
                now = largest_of_tile > before ? largest_of_tile : before;
    if (now == kMinusInf) {
      set_zero(scores, padded);
      return;
    }
    most[query] = now;
    const float sum = exponentials(scores, padded, scale, now);
    if (before == kMinusInf) {
      sums[query] = sum;
    } else {
      const float factor = __builtin_expf((before - now) * scale);
      sums[query] = sums[query] * factor + sum;
      scale_row(output, factor, round_up(columns, kWidth));
    }
  }

  float *most, *sums;
};

template <class Words>
void attend(const AttentionTile& tile, float* scratch) {
  const int64_t most = tile_keys(tile), columns = tile.head_size;
  const float scale = scale_of_scores<Words>(tile);
  Arena arena(scratch);
  const bool is_one = tile.values_are_keys, is_whole = most == tile.num_keys;
  const auto key = arena.matrix(most, columns), value = is_one ? key : arena.matrix(most, columns);
  const auto key_columns = arena.matrix(columns, most), query_columns = arena.matrix(columns, kQueryBlock);
  const auto query = arena.matrix(kQueryBlock, columns), output = arena.matrix(tile.num_queries, columns);
  const auto weights = room_of_scores(tile, arena), factors = arena.matrix(kQueryBlock, most_keys(tile));
  OnlineSoftmax softmax(tile.num_queries, arena);

  if (!is_whole) {
    fill_zero(output, tile.num_queries);
  }
  for_each_tile(tile, [&](const Range& all) {
    load_keys(tile, all, key);
    Words::to_left(key, all.count(), columns);
    transpose(key, all.count(), words_of<Words>(columns), key_columns);
    if (!is_one) {
      load_values(tile, all, value);
      Words::to_right(value, all.count(), columns, value);
    }
    const RelativeScores<Words> relative(tile, key, key_columns, arena);
    for_each_block(tile, all, [&](int64_t first, int64_t rows, const Keys& keys) {
      load_queries<Words>(tile, first, rows, query);
      Words::to_left(query, rows, columns);
      product<Words, false>(plain(query), key_columns.from_column(keys.in_tile), rows, columns, keys.count(), weights);
      if (relative.wants_query_columns()) {
        transpose(query, rows, words_of<Words>(columns), query_columns);
      }
      relative.add_to(weights, query_columns, query.data, first, rows);
      mask_rows(tile, first, rows, keys, factors);
      for (int64_t i = 0; i < rows; ++i) {
        float* row = weights.row(i);
        if (tile.soft_cap > 0) {
          cap_scores(row, nullptr, keys.padded(), scale, tile.soft_cap);
        }
        hide_keys(tile, first + i, keys, row);
        softmax.add(first + i, row, keys.padded(), scale, output.row(first + i), columns);
        if (is_whole) {
          scale_row(row, 1 / softmax.sums[first + i], keys.padded());
        }
        if (tile.dropout.is_on) {
          multiply(row, factors.row(i), keys.padded());
        }
        if (tile.weight_sums != nullptr) {
          tile.weight_sums[(first + i) * tile.query_number_step] = total(row, keys.padded());
        }
      }
      Words::to_left(weights, rows, keys.count());
      product<Words>(!is_whole, plain(weights), value.from_row(keys.in_tile / Words::kValues), rows, keys.count(),
                     columns, output.from_row(first));
    });
  });
  for (int64_t i = 0; i < tile.num_queries; ++i) {
    if (tile.log_sum_exp != nullptr) {
      tile.log_sum_exp[i * tile.query_number_step] = softmax.most[i] + __builtin_logf(softmax.sums[i]) / scale;
    }
    if (!is_whole) {
      scale_row(output.row(i), 1 / softmax.sums[i], round_up(columns, kWidth));
    }
  }
  copy_out(output, 0, tile.num_queries, columns, tile.output, tile.output_stride);
}

template <class Words>
void attend_backward(const AttentionTileBackward& op, float* scratch) {
  const AttentionTile& tile = op.forward;
  const int64_t most = tile_keys(tile), columns = tile.head_size;
  const float scale = scale_of_scores<Words>(tile);
  Arena arena(scratch);
  const bool is_one = tile.values_are_keys, are_floats = Words::kValues == 1, is_whole = most == tile.num_keys;
  const auto key = arena.matrix(most, columns), key_columns = arena.matrix(columns, most);
  const auto value_columns = is_one ? key_columns : arena.matrix(columns, most);
  const auto grad_key = arena.matrix(most, columns), grad_value = is_one ? grad_key : arena.matrix(most, columns);
  const auto query = arena.matrix(kQueryBlock, columns), grad_output = arena.matrix(kQueryBlock, columns);
  const auto query_room = arena.matrix(kQueryBlock, columns), grad_output_room = arena.matrix(kQueryBlock, columns);
  const auto query_columns = arena.matrix(columns, kQueryBlock), grad_query = arena.matrix(tile.num_queries, columns);
  const auto weights = room_of_scores(tile, arena), grad_weights = room_of_scores(tile, arena),
             factors = arena.matrix(kQueryBlock, most_keys(tile)), slopes = arena.matrix(kQueryBlock, most_keys(tile));
  float* const means = arena.take(tile.num_queries);
  const auto add_to_sum = [&](int64_t i, const Matrix& rows, int64_t count) {
    if (op.sums != nullptr) {
      add_rows(rows, count, columns, op.sums + i * op.sum_stride);
    }
  };
  for (int64_t i = 0; i < 3 && op.sums != nullptr; ++i) {
    set_zero(op.sums + i * op.sum_stride, columns);
  }
  for (int64_t first = 0; first < tile.num_queries && !is_whole; first += kQueryBlock) {
    const int64_t rows = at_most(kQueryBlock, tile.num_queries - first);
    copy_in(op.grad_output, tile.output_stride, nullptr, 1, first, rows, columns, grad_output);
    copy_in(op.output, tile.output_stride, nullptr, 1, first, rows, columns, query);
    for (int64_t i = 0; i < rows; ++i) {
      means[first + i] = dot_of(grad_output.row(i), query.row(i), round_up(columns, kWidth));
    }
  }
  if (!is_whole) {
    fill_zero(grad_query, tile.num_queries);
  }

  for_each_tile(tile, [&](const Range& all) {
    const int64_t count = all.count();
    if (!is_one) {  // then grad_key, not used yet, holds the values
      load_values(tile, all, grad_key);
      Words::to_left(grad_key, count, columns);
      transpose(grad_key, count, words_of<Words>(columns), value_columns);
      fill_zero(grad_value, count);
    }
    load_keys(tile, all, key);
    const auto left_key = are_floats ? key : grad_key;
    if (!are_floats) {
      load_keys(tile, all, left_key);
      Words::to_left(left_key, count, columns);
      Words::to_right(key, count, columns, key);
    }
    transpose(left_key, count, words_of<Words>(columns), key_columns);
    RelativeScores<Words> relative(tile, left_key, key_columns, arena);
    relative.begin_backward(key, grad_weights, arena);
    fill_zero(grad_key, count);
    for_each_block(tile, all, [&](int64_t first, int64_t rows, const Keys& keys) {
      load_queries<Words>(tile, first, rows, query);
      const auto right_query = Words::to_right(query, rows, columns, query_room);
      Words::to_left(query, rows, columns);
      copy_in(op.grad_output, tile.output_stride, nullptr, 1, first, rows, columns, grad_output);
      const auto right_grad_output = Words::to_right(grad_output, rows, columns, grad_output_room);
      Words::to_left(grad_output, rows, columns);
      product<Words, false>(plain(query), key_columns.from_column(keys.in_tile), rows, columns, keys.count(), weights);
      if (relative.wants_query_columns()) {
        transpose(query, rows, words_of<Words>(columns), query_columns);
      }
      relative.add_to(weights, query_columns, query.data, first, rows);
      product<Words, false>(plain(grad_output), value_columns.from_column(keys.in_tile), rows, columns, keys.count(),
                            grad_weights);
      mask_rows(tile, first, rows, keys, factors);
      for (int64_t i = 0; i < rows; ++i) {
        float *weight = weights.row(i), *grad = grad_weights.row(i), *factor = factors.row(i);
        const int64_t number = (first + i) * tile.query_number_step;
        if (tile.soft_cap > 0) {
          cap_scores(weight, slopes.row(i), keys.padded(), scale, tile.soft_cap);
        }
        hide_keys(tile, first + i, keys, weight);
        exponentials(weight, keys.padded(), scale, tile.log_sum_exp[number]);
        if (op.grad_weight_sums != nullptr) {
          add_to_row(grad, op.grad_weight_sums[number], keys.padded());
        }
        if (tile.dropout.is_on) {
          multiply(grad, factor, keys.padded());
        }
        softmax_backward(weight, grad, keys.padded(),
                         is_whole ? dot_of(weight, grad, keys.padded()) : means[first + i]);
        if (tile.soft_cap > 0) {
          multiply(grad, slopes.row(i), keys.padded());
        }
        if (tile.dropout.is_on) {  // as they met the values
          multiply(weight, factor, keys.padded());
        }
      }
      const auto right_weights = Words::to_right(weights, rows, keys.count(), weights);
      product<Words, true>(transposed(right_weights), right_grad_output, keys.count(), rows, columns,
                           grad_value.from_row(keys.in_tile));
      relative.take_gradient(grad_weights, right_query, first, rows, grad_key);
      const auto right_grad = Words::to_right(grad_weights, rows, keys.count(), weights);
      product<Words, true>(transposed(right_grad), right_query, keys.count(), rows, columns,
                           grad_key.from_row(keys.in_tile));
      Words::to_left(grad_weights, rows, keys.count());
      product<Words>(!is_whole, plain(grad_weights), key.from_row(keys.in_tile / Words::kValues), rows, keys.count(),
                     columns, grad_query.from_row(first));
      relative.add_to_queries(grad_query.from_row(first), first, rows);
    });
    relative.end_backward(grad_key, op);
    scale_rows(grad_key, count, scale, columns);
    rotate<true>(tile, all.begin, count, grad_key);
    add_to_sum(1, grad_key, count);
    copy_out(grad_key, all.begin, count, columns, op.grad_key, tile.key_stride);
    if (!is_one) {
      add_to_sum(2, grad_value, count);
      copy_out(grad_value, all.begin, count, columns, op.grad_value, tile.value_stride);
    }
  });
  scale_rows(grad_query, tile.num_queries, tile.scale, columns);
  rotate<true>(tile, 0, tile.num_queries, grad_query);
  add_to_sum(0, grad_query, tile.num_queries);
  copy_out(grad_query, 0, tile.num_queries, columns, op.grad_query, tile.query_stride);
}

}  // namespace

void attention(const AttentionTile& tile, float* scratch) {
  with_words(tile, [&]<class Words>(Words) { attend<Words>(tile, scratch); });
}

void attention_backward(const AttentionTileBackward& op, float* scratch) {
  with_words(op.forward, [&]<class Words>(Words) { attend_backward<Words>(op, scratch); });
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
