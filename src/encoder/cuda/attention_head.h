#pragma once

#include <cstdint>
#include <limits>

#include "encoder/cuda/attention_launchers.h"
#include "kernels/cuda/block.h"

/// One head of a sequence, as kernels of packed attention see it.
namespace mezzo::encoder::MEZZO_CUDA {

constexpr int kTile = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;  // exponentials are powers of two

/// Warps of a block at most. Wide heads take more registers.
template <class T, int kColumns, bool kExtra>
constexpr int kMostWarps = kColumns * static_cast<int>(sizeof(T)) <= 128 && !kExtra ? 8 : 4;

MEZZO_DEVICE constexpr int padded(int rows) { return (rows + kTile - 1) / kTile * kTile; }
MEZZO_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }

/// One head of a sequence.
struct Head {
  int sequence, number, heads, size;
  int64_t first_row;
  int count;            ///< of tokens
  int64_t first_query;  ///< row of the first query, of `query`
  int queries;
  int before, after;  ///< query i sees keys i - before ... i + after

  MEZZO_DEVICE int64_t hidden() const { return static_cast<int64_t>(heads) * size; }
  MEZZO_DEVICE int64_t column() const { return static_cast<int64_t>(number) * size; }
  /// A query's place in [rows of `query`, heads].
  MEZZO_DEVICE int64_t query(int row) const { return (first_query + row) * heads + number; }

  /// Whether no query of a tile sees a key of another.
  MEZZO_DEVICE bool are_apart(int query, int key) const {
    return key >= query + kTile + after || query >= key + kTile + before;
  }
};

MEZZO_DEVICE Head head_of(const PackedAttentionArguments& a, int64_t index) {
  const auto number = static_cast<uint32_t>(index), heads = static_cast<uint32_t>(a.rule.num_heads);  // quick to divide
  const int64_t sequence = number / heads;
  const int32_t* const own = a.sequences.table + 2 * sequence;
  const bool only_first = a.rule.only_first_queries;
  const auto reach = [&](int64_t keys) { return static_cast<int>(keys < own[1] ? keys : own[1]); };
  return {.sequence = static_cast<int>(sequence),
          .number = static_cast<int>(number % heads),
          .heads = static_cast<int>(heads),
          .size = static_cast<int>(a.rule.head_size),
          .first_row = own[0],
          .count = own[1],
          .first_query = only_first ? sequence : own[0],
          .queries = only_first ? 1 : own[1],
          .before = reach(a.rule.keys_before),
          .after = reach(a.rule.keys_after)};
}

/// Some rows of a head; `begin` is a tile's.
struct Range {
  int begin, end;
};

/// The rows, of `count`, that rows `first` to `end` - 1 meet, which reach `before` and `after` rows to the sides.
MEZZO_DEVICE Range within_reach(int first, int end, int before, int after, int count) {
  return {first > before ? (first - before) / kTile * kTile : 0, smaller(count, end + after)};
}

/// Rows of queries.
inline int64_t num_queries(const PackedAttentionArguments& a) {
  return a.rule.only_first_queries ? a.sequences.count : a.sequences.num_rows;
}
/// Of a number per head and query.
inline int64_t num_weights(const PackedAttentionArguments& a) { return a.rule.num_heads * num_queries(a); }
inline int64_t num_key_entries(const PackedAttentionArguments& a) {
  return a.rule.num_heads * a.sequences.num_rows * a.relative.num_rows;
}
inline int most_queries(const PackedAttentionArguments& a) {
  return a.rule.only_first_queries ? 1 : a.sequences.longest;
}

template <class Memory>
void reads_inputs(Memory& memory, const PackedAttentionArguments& a) {
  const int64_t hidden = a.rule.num_heads * a.rule.head_size;
  memory.reads(a.query, num_queries(a) * hidden);
  memory.reads(a.key, a.sequences.num_rows * hidden);
  memory.reads(a.value, a.sequences.num_rows * hidden);
  for (const Span& bias : {a.query_bias, a.key_bias, a.value_bias}) {
    memory.reads(bias, hidden);
  }
  memory.reads(a.rotary, a.sequences.longest * a.rule.head_size);
  if (a.relative.rows != nullptr) {
    memory.reads(a.relative.rows - (a.sequences.longest - 1), 2 * int64_t{a.sequences.longest} - 1);
  }
  memory.reads(a.relative.of_queries, num_weights(a) * a.relative.num_rows);
  memory.reads(a.relative.of_keys, num_key_entries(a));
  memory.reads(a.sequences.table, 2 * a.sequences.count);
  memory.reads(a.mask.step_offset, 1);
}

}  // namespace mezzo::encoder::MEZZO_CUDA
