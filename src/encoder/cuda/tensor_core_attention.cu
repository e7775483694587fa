#include <atomic>
#include <type_traits>

#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "encoder/cuda/tensor_core_tiles.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

// Attention in half precision by tensor cores. A block has a head to itself, whose rows all lie in shared memory as
// matrices hold them, biases added; a warp computes sixteen of them against tiles of sixteen others. Weights, and
// gradients of scores, are rounded where they are factors of a product. Backward goes by queries, then by keys, each a
// warp's own; so no sum has two writers, and the result is always the same.

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

/// Softmax tile by tile. A head reads 3 n rows and writes n.
template <class T, int kColumns>
struct HalfAttention {
  static constexpr int kMostThreads = kMostWarps * kWarp, kBlocksAtOnce = 2;

  template <class Memory>
  static void uses(Memory& memory, const PackedAttentionArguments& a) {
    reads_inputs(memory, a);
    memory.writes(a.output, num_weights(a) * a.head_size);
    memory.writes(a.log_sum_exp, num_weights(a));
  }

  MEZZO_DEVICE static void run(const Block& block, const PackedAttentionArguments& a) {
    const Head head = head_of(a, block.index());
    clear_rows_of_none(block, a.output, head.column(), head.size, a.sequences, head.sequence);
    auto* shared = block.shared<unsigned char>();
    const int rows = padded(head.count);
    const auto queries = take_rows<T, kColumns>(shared, rows), keys = take_rows<T, kColumns>(shared, rows),
               values = take_rows<T, kColumns>(shared, rows);
    copy_rows<T, kColumns, 3>(block, head, {queries_of(a, head), keys_of(a, head), values_of(a, head)},
                              {queries, keys, values}, head.count);
    block.sync();
    const int lane = block.thread() % kWarp, first = block.warp() * kTile;
    if (first >= head.count) {
      return;
    }
    const Mask mask = with_its_step(a.mask);
    const float scale = a.scale * kLog2E;
    float most[2] = {-kInfinity, -kInfinity}, total[2] = {};
    RowSums<kColumns> sums = {};
    MEZZO_ROLLED
    for (int key = 0; key < rows; key += kTile) {
      if (are_apart(a.window, first, key)) {
        continue;
      }
      SquareTile weights = product_of_rows(block, queries, first, keys, key);
      const unsigned kept = mask.threshold == 0 ? kAll : draw_kept(block, mask, head, first, key);
      const unsigned are_weights = weights_of_tile(a, head, lane, first, key);
      float larger[2] = {most[0], most[1]};
      for (int n = 0; n < 2; ++n) {
        for (int i = 0; i < 4; ++i) {
          weights.at[n].at[i] = has(are_weights, n, i) ? weights.at[n].at[i] * scale : -kInfinity;
          larger[i / 2] = ::fmaxf(larger[i / 2], weights.at[n].at[i]);
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
      for (int n = 0; n < 2; ++n) {
        for (int i = 0; i < 4; ++i) {
          const float weight = ::exp2f(weights.at[n].at[i] - shift[i / 2]);
          total[i / 2] += weight;
          weights.at[n].at[i] = has(kept, n, i) ? weight : 0;
        }
      }
      for (SumTile& tile : sums.at) {
        for (int i = 0; i < 4; ++i) {
          tile.at[i] *= shrink[i / 2];
        }
      }
      sums.add(block, left_of<T>(weights), values, key);
    }
    float factors[2];
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(block, total[half]);
      factors[half] = mask.scale / sum;
      const int row = first + lane / 4 + 8 * half;
      if (a.log_sum_exp != nullptr && lane % 4 == 0 && row < head.count) {
        a.log_sum_exp[head.query(row)] = most[half] * kLn2 + ::logf(sum);
      }
    }
    store_rows<T>(head, sums, factors, a.output, head.first_query + first, head.count - first, lane);
  }
};

/// A head reads 5 n rows and writes 3 n. Scores and weights are computed twice, by the same instructions: for gradients
/// of queries, and for those of keys and values. Each query's sum of weights times their gradients is its gradient
/// times its output.
template <class T, int kColumns>
struct HalfAttentionBackward {
  static constexpr int kMostThreads = kMostWarps * kWarp, kBlocksAtOnce = 2;
  using Arguments = PackedAttentionBackwardArguments;
  using Matrix = HalfRows<T, kColumns>;

  template <class Memory>
  static void uses(Memory& memory, const Arguments& of) {
    const PackedAttentionArguments& a = of.forward;
    reads_inputs(memory, a);
    memory.reads(of.grad, num_weights(a) * a.head_size);
    memory.reads(a.output, num_weights(a) * a.head_size);
    memory.reads(a.log_sum_exp, num_weights(a));
    for (const Span& grads : {of.grad_query, of.grad_key, of.grad_value}) {
      memory.writes(grads, num_weights(a) * a.head_size);
    }
    memory.writes(of.bias_sums, 3 * a.sequences.count * a.num_heads * a.head_size);
  }

  static int shared_bytes(int longest, int warps) {
    constexpr int kFloat = sizeof(float);
    return padded(longest) * (4 * Matrix::kBytes + 2 * kFloat) + warps * (kColumns * kFloat + warps * kWarp);
  }

  MEZZO_DEVICE static void run(const Block& block, const Arguments& of) {
    const PackedAttentionArguments& a = of.forward;
    const Head head = head_of(a, block.index());
    MEZZO_ROLLED
    for (const RowsSpan* grads : {&of.grad_query, &of.grad_key, &of.grad_value}) {
      clear_rows_of_none(block, *grads, head.column(), head.size, a.sequences, head.sequence);
    }
    auto* memory = block.shared<unsigned char>();
    const int rows = padded(head.count), lane = block.thread() % kWarp, first = block.warp() * kTile;
    const auto queries = take_rows<T, kColumns>(memory, rows), keys = take_rows<T, kColumns>(memory, rows),
               values = take_rows<T, kColumns>(memory, rows), grads = take_rows<T, kColumns>(memory, rows);
    float *const log_sum_exp = take_floats(memory, rows), *const products = take_floats(memory, rows),
                 *const scratch = take_floats(memory, block.threads() / kWarp * kColumns);
    copy_rows<T, kColumns, 4>(
        block, head, {queries_of(a, head), keys_of(a, head), values_of(a, head), Source{of.grad, {}, head.first_query}},
        {queries, keys, values, grads}, head.count, a.output, products);
    uint8_t* const kept_weights = memory;  // of the lanes of each tile
    const Mask mask = with_its_step(a.mask);
    const float scale = a.scale * kLog2E;
    MEZZO_ROLLED
    for (int row = block.thread(); row < rows; row += block.threads()) {
      log_sum_exp[row] = row < head.count ? a.log_sum_exp[head.query(row)] * kLog2E : 0;
    }
    block.sync();

    MEZZO_ROLLED
    for (int pass = 0; pass < 2; ++pass) {
      const bool by_keys = pass == 1;
      const Matrix own = by_keys ? keys : queries, own_values = by_keys ? values : grads,
                   others = by_keys ? queries : keys, other_values = by_keys ? grads : values;
      RowSums<kColumns> sums = {}, value_sums = {};
      float shifts[2][2], subtracted[2][2];  // of queries: the warp's rows, or columns of both tiles
      for (int half = 0; first < head.count && !by_keys && half < 2; ++half) {
        shifts[half][0] = shifts[half][1] = log_sum_exp[first + lane / 4 + 8 * half];
        subtracted[half][0] = subtracted[half][1] = products[first + lane / 4 + 8 * half];
      }
      MEZZO_ROLLED
      for (int other = 0; first < head.count && other < rows; other += kTile) {
        if (are_apart(a.window, first, other)) {
          continue;
        }
        SquareTile weights = product_of_rows(block, own, first, others, other),
                   score_grads = product_of_rows(block, own_values, first, other_values, other);
        unsigned kept = kAll;
        if (mask.threshold != 0) {
          const int query_tile = (by_keys ? other : first) / kTile, key_tile = (by_keys ? first : other) / kTile;
          uint8_t* const of_tile = kept_weights + (query_tile * (rows / kTile) + key_tile) * kWarp;
          if (by_keys) {
            kept = transposed(of_tile, lane);
          } else {
            kept = draw_kept(block, mask, head, first, other);
            of_tile[lane] = static_cast<uint8_t>(kept);
          }
        }
        for (int n = 0; by_keys && n < 2; ++n) {
          for (int i = 0; i < 2; ++i) {
            shifts[n][i] = log_sum_exp[other + column_in_tile(lane, n, i)];
            subtracted[n][i] = products[other + column_in_tile(lane, n, i)];
          }
        }
        const unsigned are_weights = weights_of_tile(a, head, lane, first, other);
        for (int n = 0; n < 2; ++n) {
          for (int i = 0; i < 4; ++i) {
            float &weight = weights.at[n].at[i], &grad = score_grads.at[n].at[i];
            const float shift = by_keys ? shifts[n][i % 2] : shifts[i / 2][0],
                        subtrahend = by_keys ? subtracted[n][i % 2] : subtracted[i / 2][0];
            const float exponential = has(are_weights, n, i) ? ::exp2f(::fmaf(weight, scale, -shift)) : 0;
            const float factor = has(kept, n, i) ? mask.scale : 0;
            weight = exponential * factor;
            grad = exponential * ::fmaf(grad, factor, -subtrahend);
          }
        }
        sums.add(block, left_of<T>(score_grads), others, other);
        if (by_keys) {
          value_sums.add(block, left_of<T>(weights), other_values, other);
        }
      }
      put(block, of, head, sums, a.scale, by_keys ? of.grad_key : of.grad_query, by_keys ? kKey : kQuery, scratch);
      if (by_keys) {
        put(block, of, head, value_sums, 1, of.grad_value, kValue, scratch);
      }
    }
  }

 private:
  enum Which : int { kQuery, kKey, kValue };

  /// Writes the warps' rows times `factor`, and their sum, of which each warp has its part in `scratch`.
  MEZZO_DEVICE static void put(const Block& block,
                               const Arguments& of,
                               const Head& head,
                               const RowSums<kColumns>& sums,
                               float factor,
                               const RowsSpan& to,
                               Which which,
                               float* scratch) {
    const int lane = block.thread() % kWarp, warp = block.warp(), first = warp * kTile;
    store_rows<T>(head, sums, {factor, factor}, to, head.first_row + first, head.count - first, lane);
    if (of.bias_sums == nullptr) {
      block.sync();  // what is kept is read by keys next
      return;
    }
    // Of its sixteen rows a lane has two in each of its columns. Lanes of the same columns share these out among them,
    // half at a time, until each has the whole sums of some; rows behind the last one add zeros.
    constexpr int kOfLane = kColumns / 4;
    float of_columns[kOfLane];
    for (int k = 0; k < kOfLane; ++k) {
      of_columns[k] = sums.at[k / 2].at[k % 2] + sums.at[k / 2].at[k % 2 + 2];
    }
    int first_of_lane = 0;
    MEZZO_UNROLLED
    for (int step = 0; step < 3; ++step) {
      const int other = kWarp / 2 >> step, half = kOfLane / 2 >> step;
      const bool is_upper = (lane & other) != 0;
      for (int k = 0; k < half; ++k) {
        const float given = is_upper ? of_columns[k] : of_columns[k + half];
        of_columns[k] = (is_upper ? of_columns[k + half] : of_columns[k]) + block.shuffle_xor(given, other);
      }
      first_of_lane += is_upper ? half : 0;
    }
    for (int k = 0; k < kOfLane / 8; ++k) {
      const int which_column = first_of_lane + k;
      scratch[warp * kColumns + column_in_tile(lane, which_column / 2, which_column % 2)] = of_columns[k] * factor;
    }
    block.sync();
    float* const out = of.bias_sums + (static_cast<int64_t>(head.sequence) * 3 + which) * head.hidden() + head.column();
    MEZZO_ROLLED
    for (int column = block.thread(); column < kColumns; column += block.threads()) {
      float sum = 0;
      MEZZO_ROLLED
      for (int w = 0; w * kTile < head.count; ++w) {
        sum += scratch[w * kColumns + column];
      }
      out[column] = sum;
    }
    block.sync();  // before the scratch is written again
  }
};

/// Calls `body` with the type of the rows, and the columns of a head as a constant.
template <class Body>
void with_half_kind(const PackedAttentionArguments& a, const Body& body) {
  const auto with_columns = [&]<class T>(T) {
    a.head_size == 64 ? body(T(), std::integral_constant<int, 64>()) : body(T(), std::integral_constant<int, 32>());
  };
  a.query.element == Element::kHalf ? with_columns(Half()) : with_columns(BFloat16());
}

/// Whether what this GPU runs was compiled for one that has them: a build for older ones alone runs on newer
/// ones, too, by instructions that know of none.
#ifdef __CUDACC__
bool are_compiled() {
  constexpr int kMostDevices = 64;
  enum : int { kUnknown, kNo, kYes };
  static std::atomic<int> known[kMostDevices];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= kMostDevices) {
    return false;
  }
  if (known[device] == kUnknown) {
    cudaFuncAttributes attributes{};
    const auto error =
        cudaFuncGetAttributes(&attributes, entry_of<HalfAttention<BFloat16, 64>, PackedAttentionArguments>());
    known[device] = error == cudaSuccess && attributes.ptxVersion >= 80 ? kYes : kNo;
  }
  return known[device] == kYes;
}
#else
bool are_compiled() { return true; }
#endif

int warps_of(const PackedAttentionArguments& a) { return static_cast<int>(ceil_div(a.sequences.longest, kTile)); }

}  // namespace

bool suits_tensor_cores(const PackedAttentionArguments& a) {
  return a.has_tensor_cores && a.query.element != Element::kFloat && (a.head_size == 64 || a.head_size == 32) &&
         a.sequences.longest <= kMostRows && !a.only_first_queries && a.rotary == nullptr &&
         a.relative.rows == nullptr && are_compiled();
}

void tensor_core_attention(const PackedAttentionArguments& arguments, Stream stream) {
  const int warps = warps_of(arguments);
  with_half_kind(arguments, [&]<class T, class Columns>(T, Columns) {
    const int shared_bytes = 3 * padded(arguments.sequences.longest) * HalfRows<T, Columns::value>::kBytes;
    launch<HalfAttention<T, Columns::value>>(
        Grid{arguments.sequences.count * arguments.num_heads, warps * kWarp, shared_bytes}, stream, arguments);
  });
}

void tensor_core_attention_backward(const PackedAttentionBackwardArguments& arguments, Stream stream) {
  const auto& a = arguments.forward;
  const int warps = warps_of(a);
  with_half_kind(a, [&]<class T, class Columns>(T, Columns) {
    using Kernel = HalfAttentionBackward<T, Columns::value>;
    launch<Kernel>(
        Grid{a.sequences.count * a.num_heads, warps * kWarp, Kernel::shared_bytes(a.sequences.longest, warps)}, stream,
        arguments);
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
