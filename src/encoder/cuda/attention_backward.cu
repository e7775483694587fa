#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_pass.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

// Weights are computed again from log_sum_exp, in two passes: by queries, whose gradients the warps own, then by keys
// and values. So no sum has two writers. A head that fits into a block's shared memory takes both passes there. Else
// each pass has separate blocks, which loop over tiles of the other rows.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

/// Each query's sum of weights times their gradients, which is its output times the gradient of that. For heads that
/// have several blocks: reads 2 rows of a head for a number.
template <class T>
struct AttentionProducts {
  static constexpr int kThreads = 256, kRows = kThreads / 4;

  template <class Memory>
  static void uses(Memory& memory, const CutBackward& b) {
    const PackedAttentionArguments& a = b.of.forward;
    memory.reads(a.sequences.table, 2 * a.sequences.count);
    memory.reads(b.of.grad, num_weights(a) * a.rule.head_size);
    memory.reads(a.output, num_weights(a) * a.rule.head_size);
    memory.writes(b.of.products, num_weights(a));
  }

  static int parts(const PackedAttentionArguments& a) { return static_cast<int>(ceil_div(most_queries(a), kRows)); }

  MEZZO_DEVICE static void run(const Block& block, const CutBackward& b) {
    const PackedAttentionArguments& a = b.of.forward;
    const auto parts = static_cast<int>(ceil_div(a.rule.only_first_queries ? 1 : a.sequences.longest, kRows));
    const Head head = head_of(a, block.index() / parts);
    const int row = static_cast<int>(block.index() % parts) * kRows + block.thread() / 4;
    const bool is_there = row < head.queries;
    const float product = product_of(block, row_in<T>(b.of.grad, head, row), row_in<T>(a.output, head, row),
                                     is_there ? head.size : 0, b.are_chunks);
    if (is_there && block.thread() % 4 == 0) {
      b.of.products[head.query(row)] = product;
    }
  }
};

/// A head reads 5 n rows and writes 3 n, if one block takes it. Else each block reads all rows of the other side. It
/// takes 14 n FLOP per row and column, 18 n for heads of more than 128 columns. Gradients of scores and weights are
/// rounded when they are factors.
/// @tparam kExtra  whether there are relative positions or a soft cap
template <class T, int kColumns, bool kExtra>
struct AttentionBackward {
  static constexpr int kMostThreads = kMostWarps<T, kColumns, kExtra> * kWarp, kBlocksAtOnce = 2;
  using Pass = BackwardPass<T, kColumns, kExtra>;

  template <class Memory>
  static void uses(Memory& memory, const CutBackward& b) {
    const PackedAttentionArguments& a = b.of.forward;
    const int64_t hidden = a.rule.num_heads * a.rule.head_size;
    reads_inputs(memory, a);
    memory.reads(b.of.grad, num_weights(a) * a.rule.head_size);
    memory.reads(a.log_sum_exp, num_weights(a));
    if (b.is_whole_head) {
      memory.reads(a.output, num_weights(a) * a.rule.head_size);
    } else {
      memory.reads(b.of.products, num_weights(a));
    }
    memory.writes(b.of.grad_query, num_queries(a) * hidden);
    memory.writes(b.of.grad_key, a.sequences.num_rows * hidden);
    memory.writes(b.of.grad_value, a.sequences.num_rows * hidden);
    memory.writes(b.of.bias_sums, 3 * a.sequences.count * b.parts * hidden);
    memory.writes(b.of.grad_of_queries, num_weights(a) * a.relative.num_rows);
    memory.writes(b.of.grad_of_keys, num_key_entries(a));
  }

  MEZZO_DEVICE static void run(const Block& block, const CutBackward& b) {
    const PackedAttentionArguments& a = b.of.forward;
    const int blocks = b.is_whole_head ? 1 : 2 * b.parts;
    const int within = static_cast<int>(block.index() % blocks), part = within / 2;
    const Head of_block = head_of(a, block.index() / blocks);
    const bool has_queries = within % 2 == 0, has_keys = b.is_whole_head || within % 2 == 1;
    if (part == 0 && has_queries && !a.rule.only_first_queries) {
      clear_rows_of_none(block, b.of.grad_query, of_block, a.sequences);
    }
    if (part == 0 && has_keys) {
      clear_rows_of_none(block, b.of.grad_key, of_block, a.sequences);
      clear_rows_of_none(block, b.of.grad_value, of_block, a.sequences);
    }
    if (!b.is_whole_head && part * b.cut.own() >= (has_keys ? of_block.count : of_block.queries)) {
      for (int which = has_keys ? kKey : kQuery; which <= (has_keys ? kValue : kQuery); ++which) {
        for (int c = block.thread(); b.of.bias_sums != nullptr && c < of_block.size; c += block.threads()) {
          bias_sum(b, of_block, part, which)[c] = 0;
        }
      }
      return;
    }
    auto* const places = block.shared<Places>();
    if (block.thread() == 0) {
      set_places<T, kColumns>(b, part, *places);
    }
    share_sources(block, &places->sources, a, of_block, b.of.grad);
    Pass pass{block, b, *places};
    load_biases<T, kColumns>(block, a, of_block, pass.biases());
    MEZZO_ROLLED
    for (int by_keys = has_queries ? 0 : 1; by_keys <= (has_keys ? 1 : 0); ++by_keys) {
      pass.by_keys = by_keys != 0;
      MEZZO_ROLLED
      for (int round = 0; round < (Pass::kIsWide && pass.by_keys ? 2 : 1); ++round) {
        pass.wants_scores = round == 0;
        pass.wants_values = pass.by_keys && (!Pass::kIsWide || round == 1);
        pass.run();
      }
    }
  }
};

/// Shared memory that a block may have for a whole head: two such blocks should fit on a multiprocessor.
int most_shared_bytes() { return smaller(96 * 1024, device_limits().shared_bytes); }

template <class T, int kColumns, bool kExtra>
CutBackward cut_of(const PackedAttentionBackwardArguments& of) {
  constexpr int kWarps = kMostWarps<T, kColumns, kExtra>;
  const PackedAttentionArguments& a = of.forward;
  CutBackward b{of, {}, 1, 0, true, are_chunks<T>(a, {a.output, of.grad})};
  const auto needs = [&](bool is_needed, int floats) {
    b.scratch = is_needed && floats > b.scratch ? floats : b.scratch;
  };
  needs(a.query_bias.data != nullptr || a.key_bias.data != nullptr || a.value_bias.data != nullptr, kColumns);
  needs(a.rotary != nullptr, 8 * (kColumns + 8));
  needs(a.relative.rows != nullptr, kTile * (kTile + 1));
  const int longest = a.sequences.longest;
  b.cut = {padded(longest) / kTile, padded(longest), 1};
  if (b.cut.warps > kWarps || shared_bytes<T, kColumns>(b, b.cut) > most_shared_bytes()) {
    b.is_whole_head = false;
    b.cut = largest_cut(longest, longest, kWarps, [&](const Cut& cut) { return shared_bytes<T, kColumns>(b, cut); });
    b.parts = static_cast<int>(ceil_div(longest, b.cut.own()));
  }
  return b;
}

}  // namespace

bool has_memory_for_heads(Element element, int64_t head_size, bool has_extra_terms) {
  // With all that takes memory, which the forward pass needs less of.
  static const int64_t row = 0;
  static const float one = 1;
  PackedAttentionBackwardArguments of{};
  PackedAttentionArguments& a = of.forward;
  a.rule.head_size = head_size;
  a.query.element = element;
  a.sequences.longest = kTile;
  a.query_bias.data = const_cast<float*>(&one);
  a.rotary = &one;
  a.relative.rows = has_extra_terms ? &row : nullptr;
  bool fits = false;
  with_kind(a, [&]<class T, class Columns, class Extra>(T, Columns, Extra) {
    const CutBackward b = cut_of<T, Columns::value, Extra::value>(of);
    fits = shared_bytes<T, Columns::value>(b, b.cut) <= device_limits().shared_bytes;
  });
  return fits;
}

int64_t bias_parts(const PackedAttentionArguments& arguments) {
  int64_t parts = 0;
  with_kind(arguments, [&]<class T, class Columns, class Extra>(T, Columns, Extra) {
    PackedAttentionBackwardArguments of{};
    of.forward = arguments;
    parts = cut_of<T, Columns::value, Extra::value>(of).parts;
  });
  return parts;
}

void packed_attention_backward(const PackedAttentionBackwardArguments& arguments, Stream stream) {
  const PackedAttentionArguments& a = arguments.forward;
  const int64_t heads = a.sequences.count * a.rule.num_heads;
  with_kind(a, [&]<class T, class Columns, class Extra>(T, Columns, Extra) {
    const CutBackward b = cut_of<T, Columns::value, Extra::value>(arguments);
    if (!b.is_whole_head) {
      using Products = AttentionProducts<T>;
      launch<Products>(Grid{heads * Products::parts(a), Products::kThreads}, stream, b);
    }
    launch<AttentionBackward<T, Columns::value, Extra::value>>(
        Grid{heads * b.blocks(), b.cut.warps * kWarp, shared_bytes<T, Columns::value>(b, b.cut)}, stream, b);
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
