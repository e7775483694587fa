#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "encoder/cuda/relative_scores.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

struct CutAttention {
  PackedAttentionArguments of;
  Cut cut;
  int parts;  ///< blocks of a head
  bool are_chunks;
};

template <class T, int kColumns>
int shared_bytes(const Cut& cut) {
  return (cut.own() + 2 * cut.others()) * Rows<T, kColumns>::kBytes + 3 * kColumns * static_cast<int>(sizeof(float)) +
         static_cast<int>(sizeof(HeadSources));
}

/// Softmax over the tiles so far: exponentials are of scores less the largest, and all are scaled down if a larger
/// score follows. A block has some tiles of queries of one head, a warp each, and loops over the tiles of keys that
/// they see. This takes 4 n FLOP per query and column. Weights are rounded before they meet values.
/// @tparam kExtra  whether there are relative positions or a soft cap
template <class T, int kColumns, bool kExtra>
struct Attention {
  static constexpr int kMostThreads = kMostWarps<T, kColumns, kExtra> * kWarp, kBlocksAtOnce = 2;
  static constexpr int kStep = 2;  ///< tiles of keys at once

  template <class Memory>
  static void uses(Memory& memory, const CutAttention& of) {
    const PackedAttentionArguments& a = of.of;
    reads_inputs(memory, a);
    memory.writes(a.output, num_weights(a) * a.rule.head_size);
    memory.writes(a.log_sum_exp, num_weights(a));
  }

  MEZZO_DEVICE static void run(const Block& block, const CutAttention& of) {
    const PackedAttentionArguments& a = of.of;
    if constexpr (kExtra) {
      if (a.relative.rows != nullptr) {
        require_rows(block, a.relative, a.sequences.longest);
      }
    }
    const int part = static_cast<int>(block.index() % of.parts);
    const int own = of.cut.own(), first_own = part * own;
    const Head of_block = head_of(a, block.index() / of.parts);
    if (part == 0 && !a.rule.only_first_queries) {
      clear_rows_of_none(block, a.output, of_block, a.sequences);
    }
    if (first_own >= of_block.queries) {
      return;
    }
    SharedMemory shared(block);
    const HeadSources& sources = share_sources(block, shared.take<HeadSources>(1), a, of_block, {});
    const Head& head = sources.head;
    const auto queries = shared.rows<T, kColumns>(own), keys = shared.rows<T, kColumns>(of.cut.others()),
               values = shared.rows<T, kColumns>(of.cut.others());
    float* const biases = shared.take<float>(3 * kColumns);
    const RowsCopy<T, kColumns> copy{block, head, of.are_chunks};
    const int own_rows = smaller(own, padded(head.queries - first_own));
    const Range seen =
        within_reach(first_own, smaller(first_own + own, head.queries), head.before, head.after, head.count);
    const auto rows_from = [&](int first) { return smaller(of.cut.tile, padded(seen.end - first)); };

    const int lane = block.thread() % kWarp, row = block.warp() * kTile, first = first_own + row;
    const Mask& mask = sources.mask;
    const float scale = kExtra ? a.rule.scale : a.rule.scale * kLog2E;
    float most[2] = {-kInfinity, -kInfinity}, total[2] = {};
    RowSums<kColumns> sums = {};

    copy.begin(sources.query, first_own, head.queries, own_rows, queries);
    load_biases<T, kColumns>(block, a, head, biases);
    for_tiles(
        block, seen, of.cut,
        [&](int begin, int stage) {
          const int rows = rows_from(begin);
          copy.begin(sources.key, begin, head.count, rows, keys.from(stage * of.cut.tile));
          copy.begin(sources.value, begin, head.count, rows, values.from(stage * of.cut.tile));
        },
        [&](int begin, int stage) {
          const int rows = rows_from(begin);
          if (begin == seen.begin) {
            copy.finish(sources.query, first_own, head.queries, own_rows, queries, biases);
          }
          copy.finish(sources.key, begin, head.count, rows, keys.from(stage * of.cut.tile), biases + kColumns);
          copy.finish(sources.value, begin, head.count, rows, values.from(stage * of.cut.tile), biases + 2 * kColumns);
        },
        [&](int begin, int stage) {
          if (first >= head.queries) {
            return;
          }
          const int rows = rows_from(begin), at = stage * of.cut.tile;
          MEZZO_ROLLED
          for (int step = 0; step < rows; step += kStep * kTile) {
            SquareTile weights[kStep];
            bool are_met[kStep];
            float larger[2] = {most[0], most[1]};
            MEZZO_UNROLLED
            for (int s = 0; s < kStep; ++s) {
              const int other = step + s * kTile, key = begin + other;
              are_met[s] = other < rows && !head.are_apart(first, key);
              if (are_met[s]) {
                weights[s] = product_of_rows(block, queries, row, keys, at + other, head.size);
                const unsigned are_seen = visible_elements(head, lane, first, key, /*by_keys=*/false);
                for (int n = 0; n < 2; ++n) {
                  for (int i = 0; i < 4; ++i) {
                    float& score = weights[s].at[n].at[i];
                    if constexpr (kExtra) {
                      score = extra_score(a, head, score, smaller(first + row_in_tile(lane, i), head.queries - 1),
                                          smaller(key + column_in_tile(lane, n, i), head.count - 1));
                    } else {
                      score *= scale;
                    }
                    score = has(are_seen, n, i) ? score : -kInfinity;
                    larger[i / 2] = ::fmaxf(larger[i / 2], score);
                  }
                }
              }
            }
            float shift[2], shrink[2];
            for (int half = 0; half < 2; ++half) {
              larger[half] = row_max(block, larger[half]);
              shift[half] = larger[half] == -kInfinity ? 0 : larger[half];  // of a query that has seen no key so far
              shrink[half] = ::exp2f(most[half] - shift[half]);
              most[half] = larger[half];
              total[half] *= shrink[half];
            }
            MEZZO_UNROLLED
            for (int i = 0; i < kColumns / 2; ++i) {
              sums.at[i / 4].at[i % 4] *= shrink[i % 4 / 2];
            }
            MEZZO_UNROLLED
            for (int s = 0; s < kStep; ++s) {
              if (are_met[s]) {
                const unsigned kept =
                    mask.threshold == 0 ? kAll : draw_kept(block, mask, head, first, begin + step + s * kTile);
                for (int n = 0; n < 2; ++n) {
                  for (int i = 0; i < 4; ++i) {
                    float& weight = weights[s].at[n].at[i];
                    weight = ::exp2f(weight - shift[i / 2]);
                    total[i / 2] += weight;
                    weight = has(kept, n, i) ? weight : 0;
                  }
                }
                sums.add(block, weights[s], values, at + step + s * kTile, head.size);
              }
            }
          }
        });
    if (first >= head.queries) {
      return;
    }
    float factors[2];
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(block, total[half]);
      factors[half] = sum > 0 ? mask.scale / sum : 0;
      const int query = first + lane / 4 + 8 * half;
      if (a.log_sum_exp != nullptr && lane % 4 == 0 && query < head.queries) {
        a.log_sum_exp[head.query(query)] = most[half] * kLn2 + ::logf(sum);
      }
    }
    store_rows<T>(head, sums, factors, a.output, head.first_query + first, head.queries - first, lane);
  }
};

}  // namespace

void packed_attention(const PackedAttentionArguments& arguments, Stream stream) {
  with_kind(arguments, [&]<class T, class Columns, class Extra>(T, Columns, Extra) {
    constexpr int kColumns = Columns::value;
    const auto& sequences = arguments.sequences;
    const Cut cut = largest_cut(most_queries(arguments), sequences.longest, kMostWarps<T, kColumns, Extra::value>,
                                shared_bytes<T, kColumns>);
    const auto parts = static_cast<int>(ceil_div(most_queries(arguments), cut.own()));
    launch<Attention<T, kColumns, Extra::value>>(
        Grid{sequences.count * arguments.rule.num_heads * parts, cut.warps * kWarp, shared_bytes<T, kColumns>(cut)},
        stream, CutAttention{arguments, cut, parts, are_chunks<T>(arguments)});
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
