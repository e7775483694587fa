#pragma once

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "encoder/cuda/relative_scores.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

namespace mezzo::encoder::MEZZO_CUDA {

struct CutBackward {
  PackedAttentionBackwardArguments of;
  int tile;
  int parts;      ///< blocks of a head
  int few;        ///< tokens of a head that one block holds
  int bias_rows;  ///< of bias_sums, for each sequence
};

/// What a warp has beside its rows: two numbers for each of its rows and lanes, and one more for each row
/// (put_sums_of_rows); later a sum a column.
constexpr int kWarpFloats = (2 * kWarp + 1) * kOwn;
static_assert(kWarpFloats >= kLargestHead);

/// One block at work on a head.
template <class T, int kColumns, bool kRelative>
class HeadBackward {
 public:
  using Matrix = Rows<kColumns>;
  using Sums = float[kOwn][kColumns];

  MEZZO_DEVICE HeadBackward(const Block& block, const CutBackward& cut)
      : block_(block), cut_(cut), a_(cut.of.forward), head_(head_of(cut.of.forward, block.index() / cut.parts)) {}

  MEZZO_DEVICE const Head& head() const { return head_; }
  MEZZO_DEVICE int part() const { return static_cast<int>(block_.index() % cut_.parts); }
  MEZZO_DEVICE int own() const { return block_.threads() / kWarp * kOwn; }

  MEZZO_DEVICE void load_queries(int first, int count, const Matrix& queries, const Matrix& grads) const {
    load_rows<T>(block_, head_, queries_of(a_, head_), first, count, queries);
    load_rows<T>(block_, head_, Source{cut_.of.grad, {}, head_.first_query}, first, count, grads);
  }
  MEZZO_DEVICE void load_keys(int first, int count, const Matrix& keys, const Matrix& values) const {
    load_rows<T>(block_, head_, keys_of(a_, head_), first, count, keys);
    load_rows<T>(block_, head_, values_of(a_, head_), first, count, values);
  }

  /// The gradients of queries `first` ..., which the block owns, against all keys that they see, of which
  /// `load(first, count)` puts a tile into `keys` and `values`. Leaves each query's sum of weights
  /// times their gradients in `products`.
  template <class Load>
  MEZZO_DEVICE void own_queries(int first,
                                const Matrix& queries,
                                const Matrix& grads,
                                const Matrix& keys,
                                const Matrix& values,
                                float* scratch,
                                const Load& load) const {
    const int first_query = first + warp() * kOwn;
    const bool has_queries = first_query < head_.queries;
    const Range seen = within_window(first, own(), head_.queries, head_.count),
                seen_by_warp = within_window(first_query, kOwn, head_.queries, head_.count);
    const bool is_one_tile = seen.end - seen.begin <= cut_.tile;
    float log_sum_exp[kOwn], weights[kOwn] = {}, weight_grads[kOwn] = {}, product[kOwn];
    for (int i = 0; i < kOwn; ++i) {
      log_sum_exp[i] = first_query + i < head_.queries ? a_.log_sum_exp[head_.query(first_query + i)] : 0;
      product[i] = 0;
    }
    const auto weigh = [&](int first_key, int count) {
      const int lanes = lane() < count ? lane() : 0;
      multiply(queries.from(warp() * kOwn), keys.row(lanes), head_.size, weights);
      multiply(grads.from(warp() * kOwn), values.row(lanes), head_.size, weight_grads);
      if constexpr (kRelative) {
        for (int i = 0; i < kOwn; ++i) {
          weights[i] += relative_score(a_, head_, at_most(first_query + i, head_.queries - 1), first_key + lanes);
        }
      }
      const unsigned kept = kept_by_queries(block_, a_.mask, head_, first_query, first_key);
      for (int i = 0; i < kOwn; ++i) {
        const bool is_seen = lane() < count && sees(a_.window, first_query + i, first_key + lane());
        weights[i] = is_seen ? ::expf(weights[i] - log_sum_exp[i]) : 0;
        weight_grads[i] = (kept >> i & 1U) != 0 ? weight_grads[i] * a_.mask.scale : 0;
      }
    };
    for_tiles(seen, [&](int first_key, int count) {
      load(first_key, count);
      if (has_queries && seen_by_warp.meets(first_key, count)) {
        weigh(first_key, count);
        for (int i = 0; i < kOwn; ++i) {
          product[i] = ::fmaf(weights[i], weight_grads[i], product[i]);
        }
      }
    });
    for (int i = 0; i < kOwn; ++i) {
      product[i] = warp_sum(block_, product[i]);
      if (lane() == 0 && first_query + i < head_.queries) {
        cut_.of.products[head_.query(first_query + i)] = product[i];
      }
    }
    Sums sums = {};
    auto* const of_lanes = reinterpret_cast<OfOwn*>(scratch + warp() * kWarpFloats);
    for_tiles(seen, [&](int first_key, int count) {
      if (!is_one_tile) {
        load(first_key, count);
      }
      if (has_queries && seen_by_warp.meets(first_key, count)) {
        if (!is_one_tile) {
          weigh(first_key, count);
        }
        OfOwn score_grads;
        for (int i = 0; i < kOwn; ++i) {
          score_grads.at[i] = weights[i] * (weight_grads[i] - product[i]) * a_.scale;
        }
        of_lanes[lane()] = score_grads;
        block_.sync_warp();
        add_weighted(of_lanes, keys, count, lane(), sums);
        if constexpr (kRelative) {
          if (cut_.of.grad_of_queries.data != nullptr) {
            put_sums_of_rows(block_, of_lanes, count, first_key == 0, /*scale=*/1,
                             query_lines(a_, head_, static_cast<T*>(cut_.of.grad_of_queries.data)), first_query,
                             head_.queries - first_query,
                             [&](int i, int k) { return row_of(first_query + i - first_key - k); });
          }
        }
      }
    });
    put(first, sums, cut_.of.grad_query, kQuery, scratch);
  }

  /// The gradients of keys and values `first` ..., which the block owns, against all queries that see
  /// them, once `products` are there.
  template <class Load>
  MEZZO_DEVICE void own_keys(int first,
                             const Matrix& keys,
                             const Matrix& values,
                             const Matrix& queries,
                             const Matrix& grads,
                             float* scratch,
                             const Load& load) const {
    const int first_key = first + warp() * kOwn;
    const Range seeing = within_window(first, own(), head_.count, head_.queries),
                seeing_of_warp = within_window(first_key, kOwn, head_.count, head_.queries);
    Sums key_sums = {}, value_sums = {};
    auto* const of_weights = reinterpret_cast<OfOwn*>(scratch + warp() * kWarpFloats);
    auto* const of_scores = of_weights + kWarp;
    for_tiles(seeing, [&](int first_query, int count) {
      load(first_query, count);
      if (first_key >= head_.count || !seeing_of_warp.meets(first_query, count)) {
        return;
      }
      const int lanes = lane() < count ? lane() : 0;
      float scores[kOwn], weight_grads[kOwn];
      multiply(keys.from(warp() * kOwn), queries.row(lanes), head_.size, scores);
      multiply(values.from(warp() * kOwn), grads.row(lanes), head_.size, weight_grads);
      if constexpr (kRelative) {
        for (int i = 0; i < kOwn; ++i) {
          scores[i] += relative_score(a_, head_, first_query + lanes, at_most(first_key + i, head_.count - 1));
        }
      }
      const int64_t query = head_.query(first_query + lanes);
      const float log_sum_exp = a_.log_sum_exp[query], product = cut_.of.products[query];
      const unsigned kept = kept_keys(a_.mask, head_, first_query + lanes, first_key);
      OfOwn weights, score_grads;
      for (int i = 0; i < kOwn; ++i) {
        const float weight = sees(a_.window, first_query + lanes, first_key + i) ? ::expf(scores[i] - log_sum_exp) : 0;
        const float factor = (kept >> i & 1U) != 0 ? a_.mask.scale : 0;
        weights.at[i] = weight * factor;
        score_grads.at[i] = weight * (weight_grads[i] * factor - product);
      }
      of_weights[lane()] = weights;
      of_scores[lane()] = score_grads;
      block_.sync_warp();
      add_weighted(of_weights, grads, count, lane(), value_sums);
      add_weighted(of_scores, queries, count, lane(), key_sums);  // the scale is in the queries
      if constexpr (kRelative) {
        if (cut_.of.grad_of_keys.data != nullptr) {
          put_sums_of_rows(block_, of_scores, count, first_query == 0, a_.scale,
                           key_lines(a_, head_, static_cast<T*>(cut_.of.grad_of_keys.data)), first_key,
                           head_.count - first_key,
                           [&](int i, int k) { return row_of(first_query + k - first_key - i); });
        }
      }
    });
    put(first, key_sums, cut_.of.grad_key, kKey, scratch);
    put(first, value_sums, cut_.of.grad_value, kValue, scratch);
  }

  MEZZO_DEVICE void clear_queries_of_none() const {
    if (!a_.only_first_queries) {
      clear_rows_of_none(cut_.of.grad_query);
    }
  }
  MEZZO_DEVICE void clear_keys_of_none() const {
    clear_rows_of_none(cut_.of.grad_key);
    clear_rows_of_none(cut_.of.grad_value);
  }

  /// The part's sum of a bias's gradient, column by column.
  MEZZO_DEVICE float* bias_sum(int which) const {
    const int64_t row = static_cast<int64_t>(head_.sequence) * cut_.bias_rows + part();
    return cut_.of.bias_sums + (row * 3 + which) * head_.hidden() + head_.column();
  }
  MEZZO_DEVICE void clear_bias_sum(int which) const {
    for (int d = block_.thread(); d < head_.size && cut_.of.bias_sums != nullptr; d += block_.threads()) {
      bias_sum(which)[d] = 0;
    }
  }

 private:
  enum Which : int { kQuery, kKey, kValue };

  MEZZO_DEVICE int warp() const { return block_.thread() / kWarp; }
  MEZZO_DEVICE int lane() const { return block_.thread() % kWarp; }

  MEZZO_DEVICE void clear_rows_of_none(const RowsSpan& of) const {
    MEZZO_CUDA::clear_rows_of_none(block_, of, head_.column(), head_.size, a_.sequences, head_.sequence);
  }

  MEZZO_DEVICE int row_of(int distance) const {
    return MEZZO_CUDA::row_of(a_.relative.rows, a_.relative.num_rows, distance);
  }

  /// What `count` rows from `first` on, of `rows`, meet of `others`.
  MEZZO_DEVICE Range within_window(int first, int count, int rows, int others) const {
    return within(a_.window, first, first + count < rows ? first + count : rows, others);
  }

  template <class Body>
  MEZZO_DEVICE void for_tiles(const Range& range, const Body& body) const {
    for (int first = range.begin; first < range.end; first += cut_.tile) {
      body(first, range.end - first < cut_.tile ? range.end - first : cut_.tile);
    }
  }

  /// From the gradients of turned rows `first` ... to those of the rows.
  MEZZO_DEVICE void turn_back(int first, Sums& sums, float* scratch) const {
    float* const row = scratch + warp() * kWarpFloats;
    const int half = head_.size / 2;
    for (int i = 0; i < kOwn; ++i) {
      for (int c = 0; c < kColumns; ++c) {
        row[lane() + c * kWarp] = sums[i][c];
      }
      block_.sync_warp();
      const int place = first + warp() * kOwn + i;
      const float* const angles = a_.rotary + static_cast<int64_t>(place) * head_.size;
      for (int c = 0; c < kColumns; ++c) {
        const int column = lane() + c * kWarp;
        if (place < head_.count && column < head_.size) {
          const int left = column < half ? column : column - half;
          const float cosine = angles[left], sine = angles[half + left];
          sums[i][c] = sums[i][c] * cosine + (column < half ? row[half + left] * sine : -row[left] * sine);
        }
      }
      block_.sync_warp();
    }
  }

  /// Writes what the warps have for rows `first` ..., which the block owns, and its sum over them.
  MEZZO_DEVICE void put(int first, Sums& sums, const RowsSpan& to, Which which, float* scratch) const {
    block_.sync();  // others read the scratch, maybe
    if (a_.rotary != nullptr && which != kValue) {
      turn_back(first, sums, scratch);
    }
    const int64_t first_row = which == kQuery ? head_.first_query : head_.first_row;
    const int rows = which == kQuery ? head_.queries : head_.count;
    for (int c = 0; c < kColumns; ++c) {
      const int column = lane() + c * kWarp;
      float sum = 0;
      for (int i = 0; i < kOwn; ++i) {
        const int row = first + warp() * kOwn + i;
        if (row < rows && column < head_.size) {
          static_cast<T*>(to.data)[(first_row + row) * to.row_stride + head_.column() + column] =
              from_float<T>(sums[i][c]);
          sum += sums[i][c];
        }
      }
      scratch[warp() * kWarpFloats + column] = sum;
    }
    block_.sync();
    for (int d = block_.thread(); d < head_.size && cut_.of.bias_sums != nullptr; d += block_.threads()) {
      float sum = 0;
      for (int w = 0; w < block_.threads() / kWarp; ++w) {
        sum += scratch[w * kWarpFloats + d];
      }
      bias_sum(which)[d] = sum;
    }
  }

  const Block& block_;
  const CutBackward& cut_;
  const PackedAttentionArguments& a_;
  Head head_;
};

}  // namespace mezzo::encoder::MEZZO_CUDA
