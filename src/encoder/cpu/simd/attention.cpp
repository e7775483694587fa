#include <cstddef>

#include "encoder/cpu/simd/exp.h"
#include "encoder/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/philox.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {
namespace {

/// Queries computed at a time.
constexpr int64_t kQueryBlock = 32;

int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

/// A matrix in scratch, its rows a whole number of vectors apart.
struct Matrix {
  float* data;
  int64_t stride;
  float* row(int64_t i) const { return data + i * stride; }
  Matrix from_row(int64_t i) const { return {row(i), stride}; }
  Matrix from_column(int64_t j) const { return {data + j, stride}; }
};

/// How a matrix is read: element (i, k) lies at data[i * row + k * column].
struct Strided {
  const float* data;
  int64_t row, column;
};

Strided plain(const Matrix& a) { return {a.data, a.stride, 1}; }
Strided transposed(const Matrix& a) { return {a.data, 1, a.stride}; }

/// kRows rows and kVectors vectors of c, from `depth` columns of a and rows of b;
/// held in registers meanwhile.
template <int kRows, int kVectors, bool kAdd>
inline void product_tile(const float* a,
                         int64_t a_row,
                         int64_t a_column,
                         const float* b,
                         int64_t b_row,
                         int64_t depth,
                         float* c,
                         int64_t c_row) {
  Floats sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = kAdd ? load(c + i * c_row + v * kWidth) : Floats{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    Floats right[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      right[v] = load(b + k * b_row + v * kWidth);
    }
    for (int i = 0; i < kRows; ++i) {
      const float left = a[i * a_row + k * a_column];
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] += left * right[v];
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      store(c + i * c_row + v * kWidth, sums[i][v]);
    }
  }
}

template <int kVectors, bool kAdd>
void product_columns(
    const Strided& a, const float* b, int64_t b_row, int64_t rows, int64_t depth, float* c, int64_t c_row) {
  constexpr int kRows = 6;  // 12 sums, 2 vectors of b and one of a: the 16 registers of AVX2
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) {
    product_tile<kRows, kVectors, kAdd>(a.data + i * a.row, a.row, a.column, b, b_row, depth, c + i * c_row, c_row);
  }
  for (; i + 2 <= rows; i += 2) {
    product_tile<2, kVectors, kAdd>(a.data + i * a.row, a.row, a.column, b, b_row, depth, c + i * c_row, c_row);
  }
  for (; i < rows; ++i) {
    product_tile<1, kVectors, kAdd>(a.data + i * a.row, a.row, a.column, b, b_row, depth, c + i * c_row, c_row);
  }
}

/// c = a b, or c += a b: [rows, depth] times [depth, columns]. Columns up to the next multiple
/// of kWidth are computed too.
template <bool kAdd>
void product(const Strided& a, const Matrix& b, int64_t rows, int64_t depth, int64_t columns, const Matrix& c) {
  int64_t j = 0;
  for (; j + kWidth < columns; j += 2 * kWidth) {
    product_columns<2, kAdd>(a, b.data + j, b.stride, rows, depth, c.data + j, c.stride);
  }
  if (j < columns) {
    product_columns<1, kAdd>(a, b.data + j, b.stride, rows, depth, c.data + j, c.stride);
  }
}

/// Takes what it is asked for from one piece of memory.
class Arena {
 public:
  explicit Arena(float* memory) : next_(memory) {}
  float* take(int64_t count) {
    float* taken = next_;
    next_ += round_up(count, 16);
    return taken;
  }
  Matrix matrix(int64_t rows, int64_t columns) {
    const int64_t whole = round_up(columns, kMaskRun);
    const int64_t stride = whole % 1024 == 0 ? whole + 16 : whole;  // else a column's elements share a cache set
    return {take(rows * stride), stride};
  }

 private:
  float* next_;
};

/// Rows `first` ... of one head, with the bias, times `scale`; zeros in the columns up
/// to the next whole vector.
void copy_in(ConstSpan from,
             int64_t stride,
             const float* bias,
             float scale,
             int64_t first,
             int64_t rows,
             int64_t head_size,
             const Matrix& to) {
  for (int64_t i = 0; i < rows; ++i) {
    float* out = to.row(i);
    const float* in = read(from, (first + i) * stride, head_size, out);
    read_ahead(tail(from, (first + i) * stride + head_size), head_size);  // of the next head, whose turn comes next
    for_each_vector(head_size, [&](int64_t d, auto get, auto) {
      const Floats x = bias != nullptr ? get(in + d) + get(bias + d) : get(in + d);
      store(out + d, x * scale);  // lanes beyond head_size are zero
    });
  }
}

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

void transpose(const Matrix& from, int64_t rows, int64_t columns, const Matrix& to) {
  for (int64_t j = 0; j < columns; ++j) {
    float* out = to.row(j);
    for (int64_t i = 0; i < rows; ++i) {
      out[i] = from.data[i * from.stride + j];
    }
    for (int64_t i = rows; i < round_up(rows, kWidth); ++i) {
      out[i] = 0;
    }
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

void fill_zero(const Matrix& matrix, int64_t rows) {
  __builtin_memset(matrix.data, 0, static_cast<std::size_t>(rows * matrix.stride) * sizeof(float));
}

void set_zero(float* values, int64_t count) {
  __builtin_memset(values, 0, static_cast<std::size_t>(count) * sizeof(float));
}

int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

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

/// In place: e^(score - shift). Returns the sum.
float exponentials(float* scores, int64_t padded, float shift) {
  Floats total{};
  for (int64_t j = 0; j < padded; j += kWidth) {
    const Floats e = exp(load(scores + j) - shift);
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

/// From the gradient of a query's weights, before dropout, to that of its scores, in place.
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

/// to += from * by.
void add_scaled(float* to, const float* from, float by, int64_t columns) {
  for_each_vector(columns, [&](int64_t d, auto get, auto put) { put(to + d, get(to + d) + get(from + d) * by); });
}

float dot(const float* a, const float* b, int64_t columns) {
  Floats products{};
  for_each_vector(columns, [&](int64_t d, auto get, auto /*put*/) { products += get(a + d) * get(b + d); });
  return sum(products);
}

/// What relative positions add to the scores of one sequence and head. A lone query meets each key from one
/// distance: of keys by queries of positions there is no more to compute than that.
class RelativeScores {
 public:
  /// @param keys  of the sequence: [num_keys, D]
  RelativeScores(const AttentionTile& tile, const Matrix& keys, Arena& arena)
      : tile_(tile), keys_(keys), count_(tile.relative.num_rows), columns_(tile.head_size) {
    const RelativeTile& relative = tile.relative;
    if (has_key()) {
      key_ = arena.matrix(count_, columns_);
      key_columns_ = arena.matrix(columns_, count_);
      of_queries_ = arena.matrix(kQueryBlock, count_);
      copy_in(relative.key, relative.key_stride, nullptr, 1, 0, count_, columns_, key_);
      transpose(key_, count_, columns_, key_columns_);
    }
    if (has_query()) {
      query_ = arena.matrix(count_, columns_);
      copy_in(relative.query, relative.query_stride, nullptr, tile.scale, 0, count_, columns_, query_);
    }
    if (has_query() && !is_lone()) {
      of_keys_ = arena.matrix(tile.num_keys, count_);
      const auto query_columns = arena.matrix(columns_, count_);
      transpose(query_, count_, columns_, query_columns);
      product<false>(plain(keys), query_columns, tile.num_keys, columns_, count_, of_keys_);
    }
  }

  /// Adds them for queries `first` ...
  void add_to(const Matrix& scores, const Matrix& queries, int64_t first, int64_t rows) const {
    if (has_key()) {
      product<false>(plain(queries), key_columns_, rows, columns_, count_, of_queries_);
      for_each_score(first, rows, [&](int64_t i, int64_t j, int64_t r) { scores.row(i)[j] += of_queries_.row(i)[r]; });
    }
    if (has_query() && is_lone()) {
      for_each_score(first, rows, [&](int64_t i, int64_t j, int64_t r) {
        scores.row(i)[j] += dot(keys_.row(j), query_.row(r), columns_);
      });
    } else if (has_query()) {
      for_each_score(first, rows, [&](int64_t i, int64_t j, int64_t r) { scores.row(i)[j] += of_keys_.row(j)[r]; });
    }
  }

  void begin_backward(Arena& arena) {
    if (has_key()) {
      grad_of_queries_ = arena.matrix(kQueryBlock, count_);
      grad_key_ = arena.matrix(count_, columns_);
      fill_zero(grad_key_, count_);
    }
    if (has_query()) {
      grad_query_ = arena.matrix(count_, columns_);
      fill_zero(grad_query_, count_);
    }
    if (has_query() && !is_lone()) {
      grad_of_keys_ = arena.matrix(tile_.num_keys, count_);
      fill_zero(grad_of_keys_, tile_.num_keys);
    }
  }

  /// Takes the gradient of the scores of queries `first` ... May add to that of the keys.
  void take_gradient(
      const Matrix& grad, const Matrix& queries, int64_t first, int64_t rows, const Matrix& grad_keys) const {
    if (has_key()) {
      fill_zero(grad_of_queries_, rows);
      for_each_score(first, rows,
                     [&](int64_t i, int64_t j, int64_t r) { grad_of_queries_.row(i)[r] += grad.row(i)[j]; });
      product<true>(transposed(grad_of_queries_), queries, count_, rows, columns_, grad_key_);
    }
    if (has_query() && is_lone()) {
      for_each_score(first, rows, [&](int64_t i, int64_t j, int64_t r) {
        add_scaled(grad_keys.row(j), query_.row(r), grad.row(i)[j], columns_);
        add_scaled(grad_query_.row(r), keys_.row(j), grad.row(i)[j], columns_);
      });
    } else if (has_query()) {
      for_each_score(first, rows, [&](int64_t i, int64_t j, int64_t r) { grad_of_keys_.row(j)[r] += grad.row(i)[j]; });
    }
  }

  /// Adds to the gradient of the queries that were taken last.
  void add_to_queries(const Matrix& grad, int64_t rows) const {
    if (has_key()) {
      product<true>(plain(grad_of_queries_), key_, rows, count_, columns_, grad);
    }
  }

  /// When all gradients have been taken: adds to that of the keys, and to those of the positions.
  void end_backward(const Matrix& grad_keys, const AttentionTileBackward& op) const {
    if (has_key()) {
      add_out(grad_key_, 1, op.grad_relative_key, op.relative_stride);
    }
    if (has_query() && !is_lone()) {
      product<true>(plain(grad_of_keys_), query_, tile_.num_keys, count_, columns_, grad_keys);
      product<true>(transposed(grad_of_keys_), keys_, count_, tile_.num_keys, columns_, grad_query_);
    }
    if (has_query()) {
      add_out(grad_query_, tile_.scale, op.grad_relative_query, op.relative_stride);
    }
  }

 private:
  bool has_key() const { return tile_.relative.key.data != nullptr; }
  bool has_query() const { return tile_.relative.query.data != nullptr; }
  bool is_lone() const { return tile_.num_queries == 1; }

  /// Calls `task(i, j, r)`, a run of keys at a time: the rows and columns that it touches stay in cache.
  template <class Task>
  void for_each_score(int64_t first, int64_t rows, const Task& task) const {
    constexpr int64_t kRun = 16;
    for (int64_t begin = 0; begin < tile_.num_keys; begin += kRun) {
      const int64_t end = at_most(begin + kRun, tile_.num_keys);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t* const row_of = tile_.relative.rows + first + i;
        for (int64_t j = begin; j < end; ++j) {
          task(i, j, row_of[-j] - tile_.relative.first_row);
        }
      }
    }
  }

  void add_out(const Matrix& from, float scale, float* to, int64_t stride) const {
    for (int64_t r = 0; r < count_; ++r) {
      add_scaled(to + r * stride, from.row(r), scale, columns_);
    }
  }

  const AttentionTile& tile_;
  Matrix keys_;
  int64_t count_, columns_;
  Matrix key_{}, key_columns_{}, query_{};  ///< of the positions; the query's times `scale`
  Matrix of_queries_{}, of_keys_{};         ///< a row each, a column a position
  Matrix grad_of_queries_{}, grad_of_keys_{}, grad_key_{}, grad_query_{};
};

}  // namespace

int64_t attention_scratch(int64_t num_keys, int64_t head_size, int64_t relative_rows) {
  const int64_t keys = round_up(num_keys, kMaskRun) + 16, columns = round_up(head_size, kMaskRun) + 16;
  const int64_t usual = 4 * keys * columns + 2 * columns * keys + 6 * kQueryBlock * (keys + columns) + 1024;
  const int64_t positions = round_up(relative_rows, kMaskRun) + 16;
  return relative_rows == 0 ? usual : usual + positions * (6 * columns + 2 * keys + 2 * kQueryBlock) + 1024;
}

void attention(const AttentionTile& tile, float* scratch) {
  const int64_t all = tile.num_keys, columns = tile.head_size;
  Arena arena(scratch);
  const bool is_one = tile.values_are_keys;
  const auto key = arena.matrix(all, columns), value = is_one ? key : arena.matrix(all, columns);
  const auto key_columns = arena.matrix(columns, all);
  const auto query = arena.matrix(kQueryBlock, columns), output = arena.matrix(kQueryBlock, columns);
  const auto weights = arena.matrix(kQueryBlock, most_keys(tile)), factors = arena.matrix(kQueryBlock, most_keys(tile));

  copy_in(tile.key, tile.key_stride, tile.key_bias, 1, 0, all, columns, key);
  rotate<false>(tile, 0, all, key);
  if (!is_one) {
    copy_in(tile.value, tile.value_stride, tile.value_bias, 1, 0, all, columns, value);
  }
  transpose(key, all, columns, key_columns);
  const RelativeScores relative(tile, key, arena);
  for (int64_t first = 0; first < tile.num_queries; first += kQueryBlock) {
    const int64_t rows = at_most(kQueryBlock, tile.num_queries - first);
    const Keys keys(tile, first, rows);
    copy_in(tile.query, tile.query_stride, tile.query_bias, tile.scale, first, rows, columns, query);
    rotate<false>(tile, first, rows, query);
    product<false>(plain(query), key_columns.from_column(keys.begin), rows, columns, keys.count(), weights);
    relative.add_to(weights, query, first, rows);
    mask_rows(tile, first, rows, keys, factors);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = weights.row(i);
      hide_keys(tile, first + i, keys, row);
      const float most = largest(row, keys.padded());
      const float exponential_sum = exponentials(row, keys.padded(), most);
      scale_row(row, 1 / exponential_sum, keys.padded());
      const int64_t number = (first + i) * tile.query_number_step;
      if (tile.log_sum_exp != nullptr) {
        tile.log_sum_exp[number] = most + __builtin_logf(exponential_sum);
      }
      if (tile.dropout.is_on) {
        multiply(row, factors.row(i), keys.padded());
      }
      if (tile.weight_sums != nullptr) {
        tile.weight_sums[number] = total(row, keys.padded());
      }
    }
    product<false>(plain(weights), value.from_row(keys.begin), rows, keys.count(), columns, output);
    copy_out(output, first, rows, columns, tile.output, tile.output_stride);
  }
}

void attention_backward(const AttentionTileBackward& op, float* scratch) {
  const AttentionTile& tile = op.forward;
  const int64_t all = tile.num_keys, columns = tile.head_size;
  Arena arena(scratch);
  const bool is_one = tile.values_are_keys;
  const auto key = arena.matrix(all, columns), key_columns = arena.matrix(columns, all);
  const auto value_columns = is_one ? key_columns : arena.matrix(columns, all);
  const auto grad_key = arena.matrix(all, columns), grad_value = is_one ? grad_key : arena.matrix(all, columns);
  const auto query = arena.matrix(kQueryBlock, columns), grad_output = arena.matrix(kQueryBlock, columns);
  const auto weights = arena.matrix(kQueryBlock, most_keys(tile)),
             grad_weights = arena.matrix(kQueryBlock, most_keys(tile)),
             factors = arena.matrix(kQueryBlock, most_keys(tile));

  if (!is_one) {  // then grad_key, not used yet, holds the values
    copy_in(tile.value, tile.value_stride, tile.value_bias, 1, 0, all, columns, grad_key);
    transpose(grad_key, all, columns, value_columns);
    fill_zero(grad_value, all);
  }
  copy_in(tile.key, tile.key_stride, tile.key_bias, 1, 0, all, columns, key);
  rotate<false>(tile, 0, all, key);
  transpose(key, all, columns, key_columns);
  fill_zero(grad_key, all);
  RelativeScores relative(tile, key, arena);
  relative.begin_backward(arena);
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
    copy_in(tile.query, tile.query_stride, tile.query_bias, tile.scale, first, rows, columns, query);
    rotate<false>(tile, first, rows, query);
    copy_in(op.grad_output, tile.output_stride, nullptr, 1, first, rows, columns, grad_output);
    product<false>(plain(query), key_columns.from_column(keys.begin), rows, columns, keys.count(), weights);
    relative.add_to(weights, query, first, rows);
    product<false>(plain(grad_output), value_columns.from_column(keys.begin), rows, columns, keys.count(),
                   grad_weights);
    mask_rows(tile, first, rows, keys, factors);
    for (int64_t i = 0; i < rows; ++i) {
      float *weight = weights.row(i), *grad = grad_weights.row(i), *factor = factors.row(i);
      const int64_t number = (first + i) * tile.query_number_step;
      hide_keys(tile, first + i, keys, weight);
      exponentials(weight, keys.padded(), tile.log_sum_exp[number]);
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
    product<true>(transposed(weights), grad_output, keys.count(), rows, columns, grad_value.from_row(keys.begin));
    product<true>(transposed(grad_weights), query, keys.count(), rows, columns, grad_key.from_row(keys.begin));
    relative.take_gradient(grad_weights, query, first, rows, grad_key);
    product<false>(plain(grad_weights), key.from_row(keys.begin), rows, keys.count(), columns, query);
    relative.add_to_queries(query, rows);
    for (int64_t i = 0; i < rows; ++i) {
      scale_row(query.row(i), tile.scale, round_up(columns, kWidth));
    }
    rotate<true>(tile, first, rows, query);
    add_to_sum(0, query, rows);
    copy_out(query, first, rows, columns, op.grad_query, tile.query_stride);
  }
  relative.end_backward(grad_key, op);
  rotate<true>(tile, 0, all, grad_key);
  add_to_sum(1, grad_key, all);
  copy_out(grad_key, 0, all, columns, op.grad_key, tile.key_stride);
  if (!is_one) {
    add_to_sum(2, grad_value, all);
    copy_out(grad_value, 0, all, columns, op.grad_value, tile.value_stride);
  }
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
