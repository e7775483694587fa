#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "encoder/cuda/relative_scores.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

struct CutAttention {
  PackedAttentionArguments of;
  int tile;
  int parts;  ///< blocks of a head
};

template <int kColumns>
int shared_bytes(const Cut& cut) {
  return (cut.own() + 2 * cut.tile) * Rows<kColumns>::kStride * static_cast<int>(sizeof(float)) +
         cut.warps * kWarp * static_cast<int>(sizeof(OfOwn));
}

/// Softmax over the tiles so far: exponentials are of scores less the largest, and all is scaled
/// down where a larger one comes. For a sequence of n tokens a head reads 3 n rows, writes n, and
/// takes 4 n FLOP per row and column; tiles that no query of a block sees are left out. Of a lone
/// first query one warp computes, and the others load with it.
template <class T, int kColumns, bool kRelative>
struct Attention {
  static constexpr int kMostThreads = kMostWarps * kWarp, kBlocksAtOnce = blocks_at_once<kColumns>;

  template <class Memory>
  static void uses(Memory& memory, const CutAttention& cut) {
    const PackedAttentionArguments& a = cut.of;
    reads_inputs(memory, a);
    memory.writes(a.output, num_weights(a) * a.head_size);
    memory.writes(a.log_sum_exp, num_weights(a));
  }

  MEZZO_DEVICE static void run(const Block& block, const CutAttention& cut) {
    const auto& a = cut.of;
    if constexpr (kRelative) {
      require_rows(block, a.relative.rows, a.relative.num_rows, a.sequences.longest);
    }
    const int part = static_cast<int>(block.index() % cut.parts);
    const Head head = head_of(a, block.index() / cut.parts);
    if (part == 0 && !a.only_first_queries) {
      clear_rows_of_none(block, a.output, head.column(), head.size, a.sequences, head.sequence);
    }
    const int warps = block.threads() / kWarp, warp = block.thread() / kWarp, lane = block.thread() % kWarp;
    const int first_own = part * warps * kOwn;
    if (first_own >= head.queries) {
      return;
    }
    const int end_own = first_own + warps * kOwn < head.queries ? first_own + warps * kOwn : head.queries;
    SharedFloats shared(block);
    const auto queries = shared.rows<kColumns>(warps * kOwn), keys = shared.rows<kColumns>(cut.tile),
               values = shared.rows<kColumns>(cut.tile);
    auto* const weights = reinterpret_cast<OfOwn*>(shared.take(warps * kWarp * kOwn)) + warp * kWarp;
    const int first_query = first_own + warp * kOwn;
    const bool has_queries = first_query < head.queries;
    const Range seen = within(a.window, first_own, end_own, head.count),
                seen_by_warp = within(a.window, first_query, first_query + kOwn, head.count);

    load_rows<T>(block, head, queries_of(a, head), first_own, end_own - first_own, queries);
    float most[kOwn], total[kOwn], sums[kOwn][kColumns];
    for (int i = 0; i < kOwn; ++i) {
      most[i] = -kInfinity;
      total[i] = 0;
      for (int c = 0; c < kColumns; ++c) {
        sums[i][c] = 0;
      }
    }
    for (int first = seen.begin; first < seen.end; first += cut.tile) {
      const int count = seen.end - first < cut.tile ? seen.end - first : cut.tile;
      if (first > seen.begin) {
        block.sync();
      }
      load_rows<T>(block, head, keys_of(a, head), first, count, keys);
      load_rows<T>(block, head, values_of(a, head), first, count, values);
      block.sync();
      if (!has_queries || !seen_by_warp.meets(first, count)) {
        continue;
      }
      float scores[kOwn];
      const int lanes = lane < count ? lane : 0;
      multiply(queries.from(warp * kOwn), keys.row(lanes), head.size, scores);
      if constexpr (kRelative) {
        for (int i = 0; i < kOwn; ++i) {
          scores[i] += relative_score(a, head, at_most(first_query + i, head.queries - 1), first + lanes);
        }
      }
      const unsigned kept = kept_by_queries(block, a.mask, head, first_query, first);
      OfOwn weight;
      for (int i = 0; i < kOwn; ++i) {
        const bool is_seen = lane < count && sees(a.window, first_query + i, first + lane);
        const float score = is_seen ? scores[i] : -kInfinity;
        const float larger = ::fmaxf(most[i], warp_max(block, score));
        const float shift = larger == -kInfinity ? 0 : larger;  // of a query that has seen no key so far
        const float exponential = ::expf(score - shift), shrink = ::expf(most[i] - shift);
        most[i] = larger;
        total[i] = total[i] * shrink + exponential;
        for (int c = 0; c < kColumns; ++c) {
          sums[i][c] *= shrink;
        }
        weight.at[i] = (kept >> i & 1U) != 0 ? exponential * a.mask.scale : 0;
      }
      weights[lane] = weight;
      block.sync_warp();
      add_weighted(weights, values, count, lane, sums);
    }
    if (!has_queries) {
      return;
    }
    for (int i = 0; i < kOwn; ++i) {
      const float sum = warp_sum(block, total[i]);
      if (first_query + i >= head.queries) {
        continue;
      }
      T* const out =
          static_cast<T*>(a.output.data) + (head.first_query + first_query + i) * a.output.row_stride + head.column();
      for (int c = 0; c < kColumns; ++c) {
        if (lane + c * kWarp < head.size) {
          out[lane + c * kWarp] = from_float<T>(sums[i][c] / sum);
        }
      }
      if (a.log_sum_exp != nullptr && lane == 0) {
        a.log_sum_exp[head.query(first_query + i)] = most[i] + ::logf(sum);
      }
    }
  }
};

}  // namespace

void packed_attention(const PackedAttentionArguments& arguments, Stream stream) {
  if (suits_tensor_cores(arguments)) {
    return tensor_core_attention(arguments, stream);
  }
  with_kind(arguments, [&]<class Columns, class Relative>(Columns, Relative) {
    const Cut cut = largest_cut(arguments.sequences.longest, shared_bytes<Columns::value>);
    const auto parts = ceil_div(arguments.only_first_queries ? 1 : arguments.sequences.longest, cut.own());
    const Grid grid{arguments.sequences.count * arguments.num_heads * parts, cut.warps * kWarp,
                    shared_bytes<Columns::value>(cut)};
    with_type(arguments.query.element, [&]<class T>(T) {
      launch<Attention<T, Columns::value, Relative::value>>(grid, stream,
                                                            CutAttention{arguments, cut.tile, static_cast<int>(parts)});
    });
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
