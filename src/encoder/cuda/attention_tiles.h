#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/mask.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/elements.h"

/// What the kernels of packed attention share. A block takes rows of one head, its own, kOwn
/// to a warp; they meet the head's other rows tile by tile, a lane each. All of them lie in
/// shared memory, as float32.
namespace mezzo::encoder::MEZZO_CUDA {

constexpr int kOwn = 4;
constexpr int kMostWarps = 8;
constexpr int kSharedBytes = 48 * 1024;  ///< which a block has on every GPU

/// Blocks that a multiprocessor should have registers for: more of small heads, whose shared
/// memory leaves room for them.
template <int kColumns>
constexpr int blocks_at_once = kColumns <= 2 ? 3 : 2;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One head of a sequence: columns of matrices [rows, heads * size].
struct Head {
  int sequence, number, heads, size;
  int64_t first_row;
  int count;            ///< of tokens
  int64_t first_query;  ///< row of the first query, of `queries`
  int queries;

  MEZZO_DEVICE int64_t hidden() const { return static_cast<int64_t>(heads) * size; }
  MEZZO_DEVICE int64_t column() const { return static_cast<int64_t>(number) * size; }
  /// A query's place in [queries, heads], and what its mask is drawn for.
  MEZZO_DEVICE int64_t query(int row) const { return (first_query + row) * heads + number; }
  MEZZO_DEVICE uint32_t mask_number(int row) const { return static_cast<uint32_t>((first_row + row) * heads + number); }
};

/// Head `index` of all sequences'.
MEZZO_DEVICE Head head_of(const PackedAttentionArguments& a, int64_t index) {
  const auto number = static_cast<uint32_t>(index), heads = static_cast<uint32_t>(a.num_heads);  // quick to divide
  const int64_t sequence = number / heads;
  const int32_t* const own = a.sequences.table + 2 * sequence;
  return {static_cast<int>(sequence),
          static_cast<int>(number % heads),
          a.num_heads,
          a.head_size,
          own[0],
          own[1],
          a.only_first_queries ? sequence : own[0],
          a.only_first_queries ? 1 : own[1]};
}

/// Rows of queries, and what is as they are.
inline int64_t num_queries(const PackedAttentionArguments& a) {
  return a.only_first_queries ? a.sequences.count : a.sequences.num_rows;
}

/// Of a number for each head and row, and of a vector for each head and sequence.
inline int64_t num_weights(const PackedAttentionArguments& a) { return a.num_heads * num_queries(a); }
inline int64_t num_weights(const FirstTokenArguments& a) { return a.num_heads * a.sequences.num_rows; }
inline int64_t num_elements(const FirstTokenArguments& a) { return a.num_heads * a.sequences.count * a.hidden; }

/// Of lines that have an entry for each row of a table of positions.
inline int64_t num_query_entries(const PackedAttentionArguments& a) { return num_weights(a) * a.relative.num_rows; }
inline int64_t num_key_entries(const PackedAttentionArguments& a) {
  return a.num_heads * a.sequences.num_rows * (a.only_first_queries ? 1 : a.relative.num_rows);
}

/// Of a kernel that takes all of them.
template <class Memory>
void reads_inputs(Memory& memory, const PackedAttentionArguments& a) {
  const int64_t hidden = int64_t{a.num_heads} * a.head_size;
  memory.reads(a.query, num_queries(a) * hidden);
  memory.reads(a.key, a.sequences.num_rows * hidden);
  memory.reads(a.value, a.sequences.num_rows * hidden);
  for (const Span& bias : {a.query_bias, a.key_bias, a.value_bias}) {
    memory.reads(bias, hidden);
  }
  memory.reads(a.rotary, int64_t{a.sequences.longest} * a.head_size);
  if (a.relative.rows != nullptr) {
    memory.reads(a.relative.rows - (a.sequences.longest - 1), 2 * int64_t{a.sequences.longest} - 1);
  }
  memory.reads(a.relative.of_queries, num_query_entries(a));
  memory.reads(a.relative.of_keys, num_key_entries(a));
  memory.reads(a.sequences.table, 2 * a.sequences.count);
  memory.reads(a.mask.step_offset, 1);
}

/// Sets rows `first` ... `end` - 1 of `size` columns from `column` on to zero.
MEZZO_DEVICE void clear_rows(
    const Block& block, const RowsSpan& of, int64_t column, int size, int64_t first, int64_t end) {
  for (int64_t i = block.thread(); i < (end - first) * size; i += block.threads()) {
    store(of, (first + i / size) * of.row_stride + column + i % size, 0);
  }
}

/// Those behind a sequence up to the next one's, and before the first.
MEZZO_DEVICE void clear_rows_of_none(const Block& block,
                                     const RowsSpan& of,
                                     int64_t column,
                                     int size,
                                     const SequenceSpans& sequences,
                                     int64_t sequence) {
  const int32_t* const own = sequences.table + 2 * sequence;
  const int64_t next = sequence + 1 < sequences.count ? own[2] : sequences.num_rows;
  clear_rows(block, of, column, size, own[0] + own[1], next);
  if (sequence == 0) {
    clear_rows(block, of, column, size, 0, own[0]);
  }
}

/// Rows in shared memory. An odd number of quadruples apart: lanes that each read one of
/// their own meet in no bank.
template <int kColumns>
struct Rows {
  static constexpr int kStride = kWarp * kColumns + 4;
  float* data;
  MEZZO_DEVICE float* row(int i) const { return data + i * kStride; }
  MEZZO_DEVICE Rows from(int i) const { return {row(i)}; }
};

/// Shared memory, piece by piece; floats by multiples of four.
class SharedFloats {
 public:
  MEZZO_DEVICE explicit SharedFloats(const Block& block) : next_(block.shared<float>()) {}
  MEZZO_DEVICE float* take(int count) {
    float* const taken = next_;
    next_ += count;
    return taken;
  }
  template <int kColumns>
  MEZZO_DEVICE Rows<kColumns> rows(int count) {
    return {take(count * Rows<kColumns>::kStride)};
  }

 private:
  float* next_;
};

/// What a head's rows are copied from.
struct Source {
  RowsSpan rows;
  Span bias;                      ///< or none
  int64_t first_row;              ///< the head's first
  float scale = 1;                ///< of what is copied
  const float* rotary = nullptr;  ///< which turns it
};

MEZZO_DEVICE Source queries_of(const PackedAttentionArguments& a, const Head& head) {
  return {a.query, a.query_bias, head.first_query, a.scale, a.rotary};
}
MEZZO_DEVICE Source keys_of(const PackedAttentionArguments& a, const Head& head) {
  return {a.key, a.key_bias, head.first_row, 1, a.rotary};
}
MEZZO_DEVICE Source values_of(const PackedAttentionArguments& a, const Head& head) {
  return {a.value, a.value_bias, head.first_row};
}

/// Four columns `first` to `end` - 1 of a head's row: plus the bias as a T, times the scale.
template <class T>
MEZZO_DEVICE Four load_scaled(const Source& from, const Head& head, int row, int first, int end) {
  const int64_t begin = (from.first_row + row) * from.rows.row_stride + head.column();
  Four x = load_four<T>(from.rows.data, begin + first, begin + end);
  if (from.bias.data != nullptr) {
    const Four b = load_four(from.bias, head.column() + first, head.column() + end);
    for (int i = 0; i < 4; ++i) {
      x.at[i] += to_float(from_float<T>(b.at[i]));
    }
  }
  for (int i = 0; i < 4; ++i) {
    x.at[i] *= from.scale;
  }
  return x;
}

/// Calls `body(row, column)` for every fourth of `columns` of `count` rows; each thread takes its own.
template <class Body>
MEZZO_DEVICE void for_fours_of_rows(const Block& block, int columns, int count, const Body& body) {
  const int fours = (columns + 3) / 4, row_step = block.threads() / fours, four_step = block.threads() % fours;
  for (int row = block.thread() / fours, four = block.thread() % fours; row < count;) {
    body(row, 4 * four);
    row += row_step;
    four += four_step;
    if (four >= fours) {
      four -= fours;
      ++row;
    }
  }
}

/// Copies `count` rows of a head, turned by their places; zeros in the columns up to a multiple of four.
template <class T, int kColumns>
MEZZO_DEVICE void load_rows(
    const Block& block, const Head& head, const Source& from, int first, int count, const Rows<kColumns>& to) {
  if (from.rotary == nullptr) {
    for_fours_of_rows(block, head.size, count, [&](int row, int column) {
      const Four x = load_scaled<T>(from, head, first + row, column, head.size);
      store_four<float>(to.row(row), column, column + 4, x);
    });
    return;
  }
  const int half = head.size / 2;
  for_fours_of_rows(block, half, count, [&](int row, int column) {
    const Four left = load_scaled<T>(from, head, first + row, column, half),
               right = load_scaled<T>(from, head, first + row, half + column, head.size);
    const float* const angles = from.rotary + static_cast<int64_t>(first + row) * head.size;
    const Four cosine = load_four<float>(angles, column, half),
               sine = load_four<float>(angles, half + column, head.size);
    Four turned_left, turned_right;
    for (int i = 0; i < 4; ++i) {
      turned_left.at[i] = left.at[i] * cosine.at[i] - right.at[i] * sine.at[i];
      turned_right.at[i] = right.at[i] * cosine.at[i] + left.at[i] * sine.at[i];
    }
    float* const out = to.row(row);
    store_four<float>(out, column, half, turned_left);
    store_four<float>(out, half + column, head.size, turned_right);
    for (int c = head.size; c % 4 != 0 && column + 4 >= half; ++c) {
      out[c] = 0;
    }
  });
}

/// Some of a head's rows.
struct Range {
  int begin, end;
  MEZZO_DEVICE bool meets(int first, int count) const { return first < end && first + count > begin; }
};

/// Of `count` keys those that some of queries `first` to `end` - 1 sees, or the other way round; from a
/// multiple of four on.
MEZZO_DEVICE Range within(int window, int first, int end, int count) {
  return {first > window ? (first - window) / 4 * 4 : 0, end + window < count ? end + window : count};
}

MEZZO_DEVICE int at_most(int number, int most) { return number < most ? number : most; }

/// Whether a query sees a key.
MEZZO_DEVICE bool sees(int window, int query, int key) { return query - key <= window && key - query <= window; }

MEZZO_DEVICE Pack<float, 4> load_pack(const float* from) { return *reinterpret_cast<const Pack<float, 4>*>(from); }

/// Products of the warp's rows with the lane's.
template <int kColumns>
MEZZO_DEVICE void multiply(const Rows<kColumns>& own, const float* lanes, int size, float (&products)[kOwn]) {
  for (int i = 0; i < kOwn; ++i) {
    products[i] = 0;
  }
  for (int d = 0; d < size; d += 4) {
    const auto right = load_pack(lanes + d);
    for (int i = 0; i < kOwn; ++i) {
      const auto left = load_pack(own.row(i) + d);
      for (int k = 0; k < 4; ++k) {
        products[i] = ::fmaf(left.at[k], right.at[k], products[i]);
      }
    }
  }
}

/// A number for each of a warp's rows.
using OfOwn = Pack<float, kOwn>;

/// Adds `count` rows to the sums of the warp's rows, each times its weight; a lane sums
/// columns lane, lane + 32 ...
template <int kColumns>
MEZZO_DEVICE void add_weighted(
    const OfOwn* weights, const Rows<kColumns>& rows, int count, int lane, float (&sums)[kOwn][kColumns]) {
  for (int j = 0; j < count; ++j) {
    const OfOwn weight = weights[j];
    const float* const row = rows.row(j) + lane;
    for (int c = 0; c < kColumns; ++c) {
      const float x = row[c * kWarp];
      for (int i = 0; i < kOwn; ++i) {
        sums[i][c] = ::fmaf(weight.at[i], x, sums[i][c]);
      }
    }
  }
}

MEZZO_DEVICE float warp_max(const Block& block, float value) {
  for (int other = kWarp / 2; other > 0; other /= 2) {
    value = ::fmaxf(value, block.shuffle_xor(value, other));
  }
  return value;
}

/// Bit w says whether word w of the Philox block lets its weight be.
MEZZO_DEVICE unsigned kept_words(const Mask& mask, uint32_t low, uint32_t high) {
  const auto words = mask_words(mask, low, high);
  unsigned kept = 0;
  for (unsigned w = 0; w < 4; ++w) {
    kept |= (words[w] < mask.threshold ? 0U : 1U) << w;
  }
  return kept;
}

/// Bit i says whether the warp's query `first_query` + i keeps the weight of key `first_key` +
/// lane. `first_key` is a multiple of four. Each lane draws four keys of one query, and has its own
/// key's of all four by the others.
MEZZO_DEVICE unsigned kept_by_queries(
    const Block& block, const Mask& mask, const Head& head, int first_query, int first_key) {
  if (mask.threshold == 0) {
    return 0xF;
  }
  const auto lane = static_cast<unsigned>(block.thread() % kWarp), mine = lane % 4;
  const uint32_t query = head.mask_number(first_query + static_cast<int>(mine));
  const unsigned drawn = kept_words(mask, static_cast<uint32_t>(first_key) / 4 + lane / 4, query);
  unsigned kept = (drawn >> mine & 1U) << mine;
  for (unsigned other = 1; other < 4; ++other) {
    kept |= (block.shuffle_xor(drawn, static_cast<int>(other)) >> mine & 1U) << (mine ^ other);
  }
  return kept;
}

/// Bit i says whether the query keeps its weight of key `first_key` + i, a multiple of four.
MEZZO_DEVICE unsigned kept_keys(const Mask& mask, const Head& head, int query, int first_key) {
  return mask.threshold == 0 ? 0xF : kept_words(mask, static_cast<uint32_t>(first_key) / 4, head.mask_number(query));
}

/// How a launch cuts heads: warps of a block, and rows of a tile, a multiple of four.
struct Cut {
  int warps, tile;
  int own() const { return warps * kOwn; }
};

/// The largest of which `bytes(cut)` fit into shared memory. Where heads are wide,
/// short tiles let more warps in.
template <class Bytes>
Cut largest_cut(int longest, const Bytes& bytes) {
  const auto wanted = static_cast<int>(ceil_div(longest, kOwn)), most = wanted < kMostWarps ? wanted : kMostWarps,
             least = most < 3 ? most : 3;
  Cut cut{most, kWarp};
  while (bytes(cut) > kSharedBytes) {
    cut = cut.warps > least ? Cut{cut.warps - 1, cut.tile} : Cut{most, cut.tile / 2};
  }
  return cut;
}

/// Calls `body` with the number of columns that each lane takes of a head, and whether there are relative positions, as
/// constants. With these there are fewer numbers, which nvcc takes long to compile: heads are of 64 columns then.
template <class Body>
void with_kind(const PackedAttentionArguments& a, const Body& body) {
  const int size = a.head_size;
  constexpr std::integral_constant<int, 2> kTwo;
  constexpr std::integral_constant<int, kLargestHead / kWarp> kMost;
  if (a.relative.rows != nullptr) {
    size <= 2 * kWarp ? body(kTwo, std::true_type()) : body(kMost, std::true_type());
  } else if (size <= kWarp) {
    body(std::integral_constant<int, 1>(), std::false_type());
  } else if (size <= 2 * kWarp) {
    body(kTwo, std::false_type());
  } else if (size <= 4 * kWarp) {
    body(std::integral_constant<int, 4>(), std::false_type());
  } else {
    body(kMost, std::false_type());
  }
}

}  // namespace mezzo::encoder::MEZZO_CUDA
