#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "encoder/cuda/head_backward.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

// Weights are computed again from log_sum_exp. Heads of few tokens are a block's alone, which holds
// all of its rows. Those of more are passed twice: by blocks that own queries, then by blocks that
// own keys. Nothing is added to by two blocks, so the result is always the same. Tiles out of
// reach of all windows of a block are not visited.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

/// Tokens of which one block can hold all rows; -1 where heads are too wide.
template <int kColumns>
constexpr int kFew = kColumns <= 2 ? kWarp : -1;

/// Those with relative positions have more to hold: three at once would have it in memory.
template <int kColumns, bool kRelative>
constexpr int blocks_of_backward = kRelative ? 2 : blocks_at_once<kColumns>;

template <int kColumns>
int shared_bytes(const Cut& cut) {
  return (2 * (cut.own() + cut.tile) * Rows<kColumns>::kStride + cut.warps * kWarpFloats) *
         static_cast<int>(sizeof(float));
}

template <int kColumns>
Cut cut_of(const PackedAttentionArguments& a) {
  return largest_cut(a.sequences.longest, shared_bytes<kColumns>);
}

/// Counted as if the sequences were all of the pass.
template <class Memory>
void reads_for_backward(Memory& memory, const CutBackward& cut) {
  const PackedAttentionArguments& a = cut.of.forward;
  reads_inputs(memory, a);
  memory.reads(cut.of.grad, num_weights(a) * a.head_size);
  memory.reads(a.log_sum_exp, num_weights(a));
}

/// Of queries, keys and values, those from `first` to `end` - 1, and their biases' sums.
template <class Memory>
void writes_gradients(Memory& memory, const CutBackward& cut, int first, int end) {
  const PackedAttentionArguments& a = cut.of.forward;
  const Span grads[] = {cut.of.grad_query, cut.of.grad_key, cut.of.grad_value};
  const int64_t hidden = int64_t{a.num_heads} * a.head_size;
  for (int which = first; which < end; ++which) {
    memory.writes(grads[which], (which == 0 ? num_queries(a) : a.sequences.num_rows) * hidden);
    memory.writes(cut.of.bias_sums, a.sequences.count * cut.bias_rows * hidden);
  }
  if (first == 0) {
    memory.writes(cut.of.grad_of_queries, num_query_entries(a));
  }
  if (end > 1) {
    memory.writes(cut.of.grad_of_keys, num_key_entries(a));
  }
}

/// Heads of few tokens: reads 4 n rows of a head, writes 3 n, and takes 14
/// n FLOP per row and column.
template <class T, int kColumns, bool kRelative>
struct BackwardOfFew {
  static constexpr int kMostThreads = kMostWarps * kWarp, kBlocksAtOnce = blocks_of_backward<kColumns, kRelative>;

  template <class Memory>
  static void uses(Memory& memory, const CutBackward& cut) {
    reads_for_backward(memory, cut);
    memory.updates(cut.of.products, num_weights(cut.of.forward));
    writes_gradients(memory, cut, 0, 3);
  }

  MEZZO_DEVICE static void run(const Block& block, const CutBackward& cut) {
    const HeadBackward<T, kColumns, kRelative> backward(block, cut);
    const int count = backward.head().count;
    if (count > cut.few) {
      return;
    }
    SharedFloats shared(block);
    const auto queries = shared.rows<kColumns>(cut.few), grads = shared.rows<kColumns>(cut.few),
               keys = shared.rows<kColumns>(cut.few), values = shared.rows<kColumns>(cut.few);
    float* const scratch = shared.take(block.threads() / kWarp * kWarpFloats);
    backward.clear_queries_of_none();
    backward.clear_keys_of_none();
    backward.load_queries(0, backward.head().queries, queries, grads);
    backward.load_keys(0, count, keys, values);
    block.sync();
    const auto is_loaded = [](int, int) {};
    backward.own_queries(0, queries, grads, keys, values, scratch, is_loaded);
    block.sync();
    backward.own_keys(0, keys, values, queries, grads, scratch, is_loaded);
  }
};

/// Whether a block of either pass, which goes over `count` rows, has something to do; else it leaves
/// nothing of what is its own to write undone.
template <class T, int kColumns, bool kRelative>
MEZZO_DEVICE bool has_own_rows(
    const HeadBackward<T, kColumns, kRelative>& backward, int count, int few, int first_bias, int end_bias) {
  const bool is_of_few = backward.head().count <= few;
  const int first = backward.part() * backward.own();
  if (!is_of_few && first < count) {
    return true;
  }
  for (int which = first_bias; which < end_bias && !(is_of_few && first == 0); ++which) {
    backward.clear_bias_sum(which);
  }
  return false;
}

/// The others' queries: a block reads 2 rows for each of its own and, twice, 2 n of keys and
/// values; 10 n FLOP per row and column.
template <class T, int kColumns, bool kRelative>
struct BackwardOfQueries {
  static constexpr int kMostThreads = kMostWarps * kWarp, kBlocksAtOnce = blocks_of_backward<kColumns, kRelative>;

  template <class Memory>
  static void uses(Memory& memory, const CutBackward& cut) {
    reads_for_backward(memory, cut);
    memory.writes(cut.of.products, num_weights(cut.of.forward));
    writes_gradients(memory, cut, 0, 1);
  }

  MEZZO_DEVICE static void run(const Block& block, const CutBackward& cut) {
    const HeadBackward<T, kColumns, kRelative> backward(block, cut);
    const int count = backward.head().queries, own = backward.own(), first = backward.part() * own;
    if (first == 0 && backward.head().count > cut.few) {
      backward.clear_queries_of_none();
    }
    if (!has_own_rows(backward, count, cut.few, 0, 1)) {
      return;
    }
    SharedFloats shared(block);
    const auto queries = shared.rows<kColumns>(own), grads = shared.rows<kColumns>(own),
               keys = shared.rows<kColumns>(cut.tile), values = shared.rows<kColumns>(cut.tile);
    backward.load_queries(first, count - first < own ? count - first : own, queries, grads);
    backward.own_queries(first, queries, grads, keys, values, shared.take(block.threads() / kWarp * kWarpFloats),
                         [&](int first_key, int keys_count) {
                           block.sync();
                           backward.load_keys(first_key, keys_count, keys, values);
                           block.sync();
                         });
  }
};

/// The others' keys and values: a block reads 2 rows for each of its own and 2 n of queries and
/// gradients; 8 n FLOP per row and column.
template <class T, int kColumns, bool kRelative>
struct BackwardOfKeys {
  static constexpr int kMostThreads = kMostWarps * kWarp, kBlocksAtOnce = blocks_of_backward<kColumns, kRelative>;

  template <class Memory>
  static void uses(Memory& memory, const CutBackward& cut) {
    reads_for_backward(memory, cut);
    memory.reads(cut.of.products, num_weights(cut.of.forward));
    writes_gradients(memory, cut, 1, 3);
  }

  MEZZO_DEVICE static void run(const Block& block, const CutBackward& cut) {
    const HeadBackward<T, kColumns, kRelative> backward(block, cut);
    const int count = backward.head().count, own = backward.own(), first = backward.part() * own;
    if (first == 0 && count > cut.few) {
      backward.clear_keys_of_none();
    }
    if (!has_own_rows(backward, count, cut.few, 1, 3)) {
      return;
    }
    SharedFloats shared(block);
    const auto keys = shared.rows<kColumns>(own), values = shared.rows<kColumns>(own),
               queries = shared.rows<kColumns>(cut.tile), grads = shared.rows<kColumns>(cut.tile);
    backward.load_keys(first, count - first < own ? count - first : own, keys, values);
    backward.own_keys(first, keys, values, queries, grads, shared.take(block.threads() / kWarp * kWarpFloats),
                      [&](int first_query, int queries_count) {
                        block.sync();
                        backward.load_queries(first_query, queries_count, queries, grads);
                        block.sync();
                      });
  }
};

template <class T, int kColumns, bool kRelative>
void launch_backward(const PackedAttentionBackwardArguments& arguments, int parts, Stream stream) {
  constexpr int few = kFew<kColumns>;
  const auto& a = arguments.forward;
  const int64_t heads = a.sequences.count * a.num_heads;
  if constexpr (few > 0) {
    static_assert(kMostWarps * kOwn >= few);
    constexpr int kRowBytes = Rows<kColumns>::kStride * static_cast<int>(sizeof(float));
    const auto wanted = static_cast<int>(ceil_div(a.sequences.longest, kOwn)),
               warps = wanted < kMostWarps ? wanted : kMostWarps;
    launch<BackwardOfFew<T, kColumns, kRelative>>(
        Grid{heads, warps * kWarp, 4 * few * kRowBytes + warps * kWarpFloats * static_cast<int>(sizeof(float))}, stream,
        CutBackward{arguments, few, 1, few, parts});
  }
  if (a.sequences.longest > few) {
    const Cut cut = cut_of<kColumns>(a);
    const Grid grid{heads * parts, cut.warps * kWarp, shared_bytes<kColumns>(cut)};
    const CutBackward passes{arguments, cut.tile, parts, few, parts};
    launch<BackwardOfQueries<T, kColumns, kRelative>>(grid, stream, passes);
    launch<BackwardOfKeys<T, kColumns, kRelative>>(grid, stream, passes);
  }
}

}  // namespace

int64_t bias_parts(const PackedAttentionArguments& a) {
  if (suits_tensor_cores(a)) {
    return 1;
  }
  int64_t parts = 0;
  with_kind(
      a, [&]<class Columns>(Columns, auto) { parts = ceil_div(a.sequences.longest, cut_of<Columns::value>(a).own()); });
  return parts;
}

void packed_attention_backward(const PackedAttentionBackwardArguments& arguments, Stream stream) {
  const auto& a = arguments.forward;
  if (suits_tensor_cores(a)) {
    return tensor_core_attention_backward(arguments, stream);
  }
  const auto parts = static_cast<int>(bias_parts(a));
  with_kind(a, [&]<class Columns, class Relative>(Columns, Relative) {
    with_type(a.query.element,
              [&]<class T>(T) { launch_backward<T, Columns::value, Relative::value>(arguments, parts, stream); });
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
