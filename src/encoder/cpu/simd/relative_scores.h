#pragma once

#include "encoder/cpu/simd/rows.h"
#include "encoder/cpu/simd/words.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {

/// Queries computed at a time.
constexpr int64_t kQueryBlock = 32;

/// Columns of scores and their gradients that RelativeScores needs besides the keys' columns.
constexpr int64_t kMargin = 64;

/// Queries are scaled as they are loaded; bfloat16 would be rounded once more, so that there scores are.
template <class Words>
float scale_of_queries(const AttentionTile& tile) {
  return Words::kValues == 1 ? tile.scale : 1;
}

/// The part of tile.scale that is left for scores.
template <class Words>
float scale_of_scores(const AttentionTile& tile) {
  return Words::kValues == 1 ? 1 : tile.scale;
}

/// to += from * by.
inline void add_scaled(float* to, const float* from, float by, int64_t columns) {
  for_each_vector(columns, [&](int64_t d, auto get, auto put) { put(to + d, get(to + d) + get(from + d) * by); });
}

inline float dot(const float* a, const float* b, int64_t columns) {
  Floats products{};
  for_each_vector(columns, [&](int64_t d, auto get, auto /*put*/) { products += get(a + d) * get(b + d); });
  return sum(products);
}

/// What relative positions add to the scores of one sequence and head.
///
/// Products are made with the rows of positions, a row each, of which a block of queries, or of keys, meets only a
/// part. Score (i, j) is in row r(i - j) of them, which lies on a diagonal. With the queries in the columns, squares of
/// these rows are transposed, so that query i's lanes are keys. Each query's lanes begin at another key. With the keys
/// in the columns, lane l is taken from the row of a distance l less. That takes as many exchanges as the lane number
/// has bits.
///
/// A lone query meets each key from one distance, so that it needs only one row of positions for each key.
template <class Words>
class RelativeScores {
 public:
  /// @param keys  of the sequence, [num_keys, D]: a left operand, which need not live longer except for a lone query
  /// @param key_columns  the same, transposed
  RelativeScores(const AttentionTile& tile, const Matrix& keys, const Matrix& key_columns, Arena& arena)
      : tile_(tile), keys_(keys), count_(tile.relative.num_rows), columns_(tile.head_size) {
    const RelativeTile& relative = tile.relative;
    if (relative.num_rows > 0) {
      fill_places(arena);
    }
    if (has_key()) {
      key_ = arena.matrix(count_, columns_);
      of_queries_ = arena.matrix(count_, kQueryBlock);
      load_table(relative.key, relative.key_stride, 1, key_);
    }
    if (has_query()) {
      query_ = arena.matrix(count_, columns_);
      load_table(relative.query, relative.query_stride, scale_of_queries<Words>(tile), query_);
    }
    if (has_query() && !is_lone()) {
      of_keys_ = arena.matrix(count_, tile.num_keys);
      for_each_block_of_rows([&](const Range& rows, const Range& met) {
        product<Words, false>(plain(query_.from_row(rows.begin)), key_columns.from_column(met.begin), rows.count(),
                              columns_, met.count(), of_keys_.from_row(rows.begin).from_column(met.begin));
      });
    }
  }

  /// Whether add_to() reads them.
  bool wants_query_columns() const { return has_key() && !is_lone(); }

  /// Adds them for queries `first` ..., of which `query_columns` is the right operand, `query` the row of a lone
  /// one. Writes to kMargin columns beside the scores.
  void add_to(
      const Matrix& scores, const Matrix& query_columns, const float* query, int64_t first, int64_t rows) const {
    if (is_lone()) {
      for_each_key([&](int64_t j, int64_t r) {
        float& score = scores.data[j];
        score += has_key() ? dot(query, key_.row(r), columns_) : 0;
        score += has_query() ? dot(keys_.row(j), query_.row(r), columns_) : 0;
      });
      return;
    }
    if (has_key()) {
      const Range range = rows_of_queries(first, rows);
      product<Words, false>(plain(key_.from_row(range.begin)), query_columns, range.count(), columns_, rows,
                            of_queries_.from_row(range.begin));
      for_each_square(
          first, rows,
          [&](int64_t i, const int64_t(&places)[kWidth], float*(&runs)[kWidth]) {
            Floats square[kWidth];
            for (int64_t k = 0; k < kWidth; ++k) {
              square[k] = load(of_queries_.row(places[k]) + i);
            }
            transpose(square);
            for (int64_t l = 0; l < kWidth; ++l) {
              store(runs[l], load(runs[l]) + square[l]);
            }
          },
          scores);
    }
    if (has_query()) {
      for_each_diagonal(first, rows, [&](int64_t i, int64_t j, const auto& place) {
        Floats lines[kLines];
        for (int64_t t = 0; t < kLines; ++t) {
          lines[t] = load(of_keys_.row(place(t)) + j);
        }
        skew<1>(lines);
        for (int64_t k = 0; k < at_most(kWidth, rows - i); ++k) {
          float* const score = scores.row(i + k) + j;
          store(score, load(score) + lines[kWidth - 1 + k]);
        }
      });
    }
  }

  /// @param keys  of the sequence, a right operand
  /// @param grad  where gradients of scores will be
  void begin_backward(const Matrix& keys, const Matrix& grad, Arena& arena) {
    keys_ = keys;
    const RelativeTile& relative = tile_.relative;
    if (relative.num_rows > 0) {
      fill_zero({grad.data - kMargin, grad.stride}, kQueryBlock);
    }
    if (has_key()) {
      key_rows_ = right_table(relative.key, relative.key_stride, key_, arena);
      grad_of_queries_ = arena.matrix(count_, kQueryBlock);
      grad_key_ = arena.matrix(count_, columns_);
      fill_zero(grad_key_, count_);
    }
    if (has_query()) {
      query_rows_ = right_table(relative.query, relative.query_stride, query_, arena);
      grad_query_ = arena.matrix(count_, columns_);
      fill_zero(grad_query_, count_);
    }
    if (has_query() && !is_lone()) {
      grad_of_keys_ = arena.matrix(count_, tile_.num_keys);
      fill_zero(grad_of_keys_, count_);
    }
  }

  /// Takes the gradient of the scores of queries `first` ..., of which `queries` is a right operand; kMargin
  /// columns beside it are zeros. May add to that of the keys.
  void take_gradient(const Matrix& grad, const Matrix& queries, int64_t first, int64_t rows, const Matrix& grad_keys) {
    if (is_lone()) {
      take_lone_gradient(grad.data, queries.data, grad_keys);
      return;
    }
    if (has_key()) {
      const Range range = rows_of_queries(first, rows);
      fill_zero(grad_of_queries_.from_row(range.begin), range.count());
      for_each_square(
          first, rows,
          [&](int64_t i, const int64_t(&places)[kWidth], float*(&runs)[kWidth]) {
            Floats square[kWidth];
            for (int64_t l = 0; l < kWidth; ++l) {
              square[l] = i + l < rows ? load(runs[l]) : Floats{};
            }
            transpose(square);
            for (int64_t k = 0; k < kWidth; ++k) {
              float* const sums = grad_of_queries_.row(places[k]) + i;
              store(sums, load(sums) + square[k]);
            }
          },
          grad);
      const Matrix of_queries = grad_of_queries_.from_row(range.begin);
      of_queries_right_ = Words::to_right(of_queries, range.count(), rows, of_queries_);
      Words::to_left(of_queries, range.count(), rows);
      product<Words, true>(plain(of_queries), queries, range.count(), rows, columns_, grad_key_.from_row(range.begin));
    }
    if (has_query()) {
      for_each_diagonal(first, rows, [&](int64_t i, int64_t j, const auto& place) {
        Floats lines[kLines] = {};
        for (int64_t k = 0; k < at_most(kWidth, rows - i); ++k) {
          lines[kWidth - 1 + k] = load(grad.row(i + k) + j);
        }
        unskew<kWidth / 2>(lines);
        for (int64_t t = 0; t < kLines; ++t) {
          float* const sums = grad_of_keys_.row(place(t)) + j;
          store(sums, load(sums) + lines[t]);
        }
      });
    }
  }

  /// Adds to the gradient of the queries that were taken last.
  void add_to_queries(const Matrix& grad, int64_t first, int64_t rows) const {
    if (has_key() && is_lone()) {
      for (int64_t r = 0; r < count_; ++r) {
        add_scaled(grad.data, key_.row(r), grad_of_queries_.data[r], columns_);
      }
    } else if (has_key()) {
      const Range range = rows_of_queries(first, rows);
      product<Words, true>(transposed(of_queries_right_), key_rows_.from_row(range.begin / Words::kValues), rows,
                           range.count(), columns_, grad);
    }
  }

  /// When all gradients have been taken: adds to the gradients of the keys and of the positions.
  void end_backward(const Matrix& grad_keys, const AttentionTileBackward& op) {
    if (has_key()) {
      add_out(grad_key_, scale_of_scores<Words>(tile_), op.grad_relative_key, op.relative_stride);
    }
    if (has_query() && !is_lone()) {
      const Matrix right = Words::to_right(grad_of_keys_, count_, tile_.num_keys, of_keys_);
      for (int64_t begin = 0; begin < tile_.num_keys; begin += kQueryBlock) {
        const int64_t keys = at_most(kQueryBlock, tile_.num_keys - begin);
        const Range rows = rows_from(1 - begin - keys, tile_.num_keys - 1 - begin);
        const int64_t word = rows.begin / Words::kValues;
        product<Words, true>(transposed(right.from_row(word).from_column(begin)), query_rows_.from_row(word), keys,
                             rows.count(), columns_, grad_keys.from_row(begin));
      }
      Words::to_left(grad_of_keys_, count_, tile_.num_keys);
      for_each_block_of_rows([&](const Range& rows, const Range& keys) {
        const int64_t word = keys.begin / Words::kValues;
        product<Words, true>(plain(grad_of_keys_.from_row(rows.begin).from_column(word)), keys_.from_row(word),
                             rows.count(), keys.count(), columns_, grad_query_.from_row(rows.begin));
      });
    }
    if (has_query()) {
      add_out(grad_query_, tile_.scale, op.grad_relative_query, op.relative_stride);
    }
  }

 private:
  using Place = int32_t __attribute__((may_alias));  // in memory for floats

  /// Rows of positions that kWidth keys meet from kWidth queries.
  static constexpr int64_t kLines = 2 * kWidth - 1;

  struct Range {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
  };

  bool has_key() const { return tile_.relative.key.data != nullptr; }
  bool has_query() const { return tile_.relative.query.data != nullptr; }
  bool is_lone() const { return count_ > 0 && tile_.num_queries == 1; }

  /// The row of query - key, up to kWidth beyond the distances that there are, or of the next one to it.
  int64_t place(int64_t distance) const { return places_[distance]; }

  void fill_places(Arena& arena) {
    const int64_t least = 1 - tile_.num_keys, most = tile_.num_queries - 1;
    places_ = reinterpret_cast<Place*>(arena.take(most - least + 1 + 2 * kWidth)) + kWidth - least;
    for (int64_t distance = least - kWidth; distance <= most + kWidth; ++distance) {
      const int64_t row = tile_.relative.rows[at_least(least, at_most(distance, most))];
      places_[distance] = static_cast<Place>(row - tile_.relative.first_row);
    }
  }

  /// Those of distances `first` to `last`, from the first of a word on.
  Range rows_from(int64_t first, int64_t last) const {
    return {place(first) / Words::kValues * Words::kValues, place(last) + 1};
  }

  Range rows_of_queries(int64_t first, int64_t rows) const {
    return rows_from(first + 1 - tile_.num_keys, first + rows - 1);
  }

  /// The least distance whose row is `row` or a later one.
  int64_t first_distance(int64_t row) const {
    int64_t begin = 1 - tile_.num_keys, end = tile_.num_queries;
    while (begin < end) {
      const int64_t middle = begin + (end - begin) / 2;
      if (place(middle) < row) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }

  /// Calls `task(rows, keys)` for runs of rows, with the keys that meet them, from a whole number of
  /// vectors on.
  template <class Task>
  void for_each_block_of_rows(const Task& task) const {
    for (int64_t begin = 0; begin < count_; begin += kQueryBlock) {
      const Range rows{begin, at_most(begin + kQueryBlock, count_)};
      const int64_t first = first_distance(rows.begin), end = first_distance(rows.end);
      const Range keys{at_least(0, 1 - end) / kMaskRun * kMaskRun, at_most(tile_.num_keys, tile_.num_queries - first)};
      if (first < end && keys.begin < keys.end) {
        task(rows, keys);
      }
    }
  }

  /// Calls `task(i, places, runs)` for kWidth queries from `first` + i on, and kWidth rows of positions. Lane k of run
  /// l of `scores` is query i + l's score in row places[k].
  template <class Task>
  void for_each_square(int64_t first, int64_t rows, const Task& task, const Matrix& scores) const {
    for (int64_t distance = first + 1 - tile_.num_keys; distance < first + rows; distance += kWidth) {
      const int64_t last = distance + kWidth - 1;
      int64_t places[kWidth];
      for (int64_t k = 0; k < kWidth; ++k) {
        places[k] = place(last - k);
      }
      for (int64_t i = 0; i < rows; i += kWidth) {
        float* runs[kWidth];
        for (int64_t l = 0; l < kWidth; ++l) {
          runs[l] = scores.row(i + l) + (first + i + l - last);
        }
        task(i, places, runs);
      }
    }
  }

  /// Calls `task(i, j, place)` for kWidth queries, `first` + i and those behind it, and kWidth keys, j ...:
  /// they meet in the rows place(0) to place(kLines - 1).
  template <class Task>
  void for_each_diagonal(int64_t first, int64_t rows, const Task& task) const {
    for (int64_t j = 0; j < tile_.num_keys; j += kWidth) {
      for (int64_t i = 0; i < rows; i += kWidth) {
        task(i, j, [&](int64_t t) { return place(first + i - j - (kWidth - 1) + t); });
      }
    }
  }

  /// Lane l of line t, from lane l of line t - l; of the last kWidth lines.
  template <int kBit>
  static void skew(Floats (&lines)[kLines]) {
#pragma GCC unroll 31
    for (int64_t t = kLines - 1; t >= 2 * kBit - 1; --t) {
      lines[t] = choose<SecondWhere<kBit>>(lines[t], lines[t - kBit]);
    }
    if constexpr (2 * kBit < kWidth) {
      skew<2 * kBit>(lines);
    }
  }

  /// The other way round: the first lines and those beyond the last one are zeros.
  template <int kBit>
  static void unskew(Floats (&lines)[kLines]) {
#pragma GCC unroll 31
    for (int64_t t = kBit - 1; t < kLines; ++t) {
      lines[t] = choose<SecondWhere<kBit>>(lines[t], t + kBit < kLines ? lines[t + kBit] : Floats{});
    }
    if constexpr (kBit > 1) {
      unskew<kBit / 2>(lines);
    }
  }

  void take_lone_gradient(const float* grad, const float* query, const Matrix& grad_keys) {
    if (has_key()) {
      float* const of_rows = grad_of_queries_.data;  // summed first: many keys may share a row
      fill_zero({of_rows, count_}, 1);
      for_each_key([&](int64_t j, int64_t r) { of_rows[r] += grad[j]; });
      for (int64_t r = 0; r < count_; ++r) {
        add_scaled(grad_key_.row(r), query, of_rows[r], columns_);
      }
    }
    if (has_query()) {
      for_each_key([&](int64_t j, int64_t r) {
        add_scaled(grad_keys.row(j), query_.row(r), grad[j], columns_);
        add_scaled(grad_query_.row(r), keys_.row(j), grad[j], columns_);
      });
    }
  }

  /// Calls `task(j, r)` for each key of a lone query, with its row of positions.
  template <class Task>
  void for_each_key(const Task& task) const {
    for (int64_t j = 0; j < tile_.num_keys; ++j) {
      task(j, place(-j));
    }
  }

  void load_table(ConstSpan from, int64_t stride, float scale, const Matrix& to) const {
    copy_in(from, stride, nullptr, scale, 0, count_, columns_, to);
    Words::to_left(to, count_, columns_);
  }

  /// The table as a right operand; as a left one it is there already.
  Matrix right_table(ConstSpan from, int64_t stride, const Matrix& left, Arena& arena) const {
    if constexpr (Words::kValues == 1) {
      return left;
    } else {
      const Matrix right = arena.matrix(count_, columns_);
      copy_in(from, stride, nullptr, 1, 0, count_, columns_, right);
      return Words::to_right(right, count_, columns_, right);
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
  Place* places_ = nullptr;                             ///< of distance 0
  Matrix key_{}, query_{}, key_rows_{}, query_rows_{};  ///< of the positions, left and right operands
  Matrix of_queries_{}, of_keys_{};                     ///< a row a position, a column each
  Matrix grad_of_queries_{}, of_queries_right_{}, grad_of_keys_{};
  Matrix grad_key_{}, grad_query_{};
};

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
