#include "encoder/cuda/attention_launchers.h"
#include "encoder/cuda/attention_tiles.h"
#include "encoder/cuda/columns.h"
#include "encoder/cuda/mask.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

constexpr int kThreads = 256;

template <class Memory>
void reads_inputs(Memory& memory, const FirstTokenArguments& a) {
  memory.reads(a.query, num_elements(a));
  memory.reads(a.rows, a.sequences.num_rows * a.hidden);
  memory.reads(a.sequences.table, 2 * a.sequences.count);
  memory.reads(a.mask.step_offset, 1);
}

/// One sequence, and the query that one head has of it.
struct Query {
  int64_t sequence;
  int head;
  int64_t first_row;
  int count;        ///< of tokens
  int64_t at;       ///< of the query in [heads, sequences, hidden]
  int64_t weights;  ///< of its first weight in [heads, rows]
  int64_t number;   ///< in [sequences, heads]
};

MEZZO_DEVICE Query query_of(const FirstTokenArguments& a, int64_t sequence, int head) {
  const int64_t first_row = a.sequences.table[2 * sequence];
  return {sequence,
          head,
          first_row,
          a.sequences.table[2 * sequence + 1],
          (head * a.sequences.count + sequence) * a.hidden,
          head * a.sequences.num_rows + first_row,
          sequence * a.num_heads + head};
}

MEZZO_DEVICE Query query_of_block(const Block& block, const FirstTokenArguments& a) {
  return query_of(a, block.index() / a.num_heads, static_cast<int>(block.index() % a.num_heads));
}

int padded(int hidden) { return (hidden + 3) / 4 * 4; }

/// A vector as float32 times `scale` in shared memory, zeros up to a multiple of four.
/// The block has yet to meet.
template <bool kWhole, class T>
MEZZO_DEVICE void load_vector(const Block& block, const Span& from, int64_t at, int size, float scale, float* to) {
  for (int d = 4 * block.thread(); d < size; d += 4 * block.threads()) {
    Four x = Fours<kWhole>::template load<T>(from.data, at + d, at + size);
    for (int i = 0; i < 4; ++i) {
      to[d + i] = x.at[i] * scale;
    }
  }
}

/// Calls `body(row)` for every row of the sequence; a warp takes each.
template <class Body>
MEZZO_DEVICE void for_rows(const Block& block, const Query& query, const Body& body) {
  for (int j = block.thread() / kWarp; j < query.count; j += block.threads() / kWarp) {
    body(j);
  }
}

/// Calls `body(j, factor)` for every key, with what its weight is
/// multiplied by; a thread takes four.
template <class Body>
MEZZO_DEVICE void for_weights(const Block& block, const FirstTokenArguments& a, const Query& query, const Body& body) {
  const auto number = static_cast<uint32_t>(query.first_row * a.num_heads + query.head);
  for (int first = 4 * block.thread(); first < query.count; first += 4 * block.threads()) {
    float factors[4] = {1, 1, 1, 1};
    if (a.mask.threshold != 0) {
      mask_factors(a.mask, static_cast<uint32_t>(first / 4), number, factors);
    }
    for (int i = 0; i < 4; ++i) {
      if (first + i < query.count) {
        body(first + i, factors[i]);
      }
    }
  }
}

/// The sum of `term(j)` over all keys, in all threads: each warp adds all of them.
template <class Term>
MEZZO_DEVICE float sum_over_keys(const Block& block, const Query& query, const Term& term) {
  float sum = 0;
  for (int j = block.thread() % kWarp; j < query.count; j += kWarp) {
    sum += term(j);
  }
  return warp_sum(block, sum);
}

/// Calls `body(d, four)` for every four columns of a row; a lane takes each.
template <bool kWhole, class T, class Body>
MEZZO_DEVICE void for_fours_of_row(const Block& block, const FirstTokenArguments& a, int64_t row, const Body& body) {
  const auto load = [&](int64_t d) {
    return Fours<kWhole>::template load<T>(a.rows.data, row * a.hidden + d, (row + 1) * a.hidden);
  };
  for_columns_of_warp<4>(block, a.hidden, load, body);
}

/// The sum of the sequence's rows, each times its weight, times `scale`.
template <bool kWhole, class T>
MEZZO_DEVICE void write_weighted_rows(const Block& block,
                                      const FirstTokenArguments& a,
                                      const Query& query,
                                      const float* weights,
                                      float scale,
                                      const Span& to) {
  constexpr int kAtOnce = 8;  // rows on their way at a time
  for (int d = 4 * block.thread(); d < a.hidden; d += 4 * block.threads()) {
    Four sum{};
    MEZZO_ROLLED
    for (int first = 0; first < query.count; first += kAtOnce) {
      Four rows[kAtOnce];
      float factors[kAtOnce];
      MEZZO_UNROLLED
      for (int j = 0; j < kAtOnce; ++j) {
        const bool is_there = first + j < query.count;
        const int64_t row = (query.first_row + first + (is_there ? j : 0)) * a.hidden;
        factors[j] = is_there ? weights[first + j] : 0;
        rows[j] = Fours<kWhole>::template load<T>(a.rows.data, row + d, row + a.hidden);
      }
      MEZZO_UNROLLED
      for (int j = 0; j < kAtOnce; ++j) {
        for (int i = 0; i < 4; ++i) {
          sum.at[i] = first + j < query.count ? ::fmaf(factors[j], rows[j].at[i], sum.at[i]) : sum.at[i];
        }
      }
    }
    for (int i = 0; i < 4; ++i) {
      sum.at[i] *= scale;
    }
    Fours<kWhole>::template store<T>(to.data, query.at + d, query.at + a.hidden, sum);
  }
}

/// A block a sequence and head: reads the sequence's n rows twice, the second time
/// near by; 4 n FLOP per column.
template <class T, bool kWhole>
struct FirstToken {
  template <class Memory>
  static void uses(Memory& memory, const FirstTokenArguments& a) {
    reads_inputs(memory, a);
    memory.writes(a.weights, num_weights(a));
    memory.writes(a.weighted_rows, num_elements(a));
    memory.writes(a.weight_sums, a.sequences.count * a.num_heads);
    memory.writes(a.log_sum_exp, a.sequences.count * a.num_heads);
  }

  MEZZO_DEVICE static void run(const Block& block, const FirstTokenArguments& a) {
    const Query query = query_of_block(block, a);
    const int lane = block.thread() % kWarp;
    float *const vector = block.shared<float>(), *const weights = a.weights + query.weights;
    load_vector<kWhole, T>(block, a.query, query.at, a.hidden, a.scale, vector);
    block.sync();
    for_rows(block, query, [&](int j) {
      float score = 0;
      for_fours_of_row<kWhole, T>(block, a, query.first_row + j, [&](int64_t d, const Four& x) {
        const auto q = load_pack(vector + d);
        for (int i = 0; i < 4; ++i) {
          score = ::fmaf(q.at[i], x.at[i], score);
        }
      });
      score = warp_sum(block, score);
      if (lane == 0) {
        weights[j] = score;
      }
    });
    block.sync();
    float most = -kInfinity;
    for (int j = lane; j < query.count; j += kWarp) {
      most = ::fmaxf(most, weights[j]);
    }
    most = warp_max(block, most);
    const float total = sum_over_keys(block, query, [&](int j) { return ::expf(weights[j] - most); });
    block.sync();
    for_weights(block, a, query, [&](int j, float factor) {
      weights[j] = factor == 0 ? 0 : ::expf(weights[j] - most) / total * factor;
    });
    block.sync();
    const float weight_sum = sum_over_keys(block, query, [&](int j) { return weights[j]; });
    if (block.thread() == 0) {
      a.weight_sums[query.number] = weight_sum;
      if (a.log_sum_exp != nullptr) {
        a.log_sum_exp[query.number] = most + ::logf(total);
      }
    }
    write_weighted_rows<kWhole, T>(block, a, query, weights, 1, a.weighted_rows);
  }
};

/// A block a sequence and head: reads the sequence's n rows twice; 6 n FLOP per column. Leaves the
/// weights as they met the rows, and the gradients of the scores.
template <class T, bool kWhole>
struct FirstTokenQueries {
  template <class Memory>
  static void uses(Memory& memory, const FirstTokenBackwardArguments& arguments) {
    const FirstTokenArguments& a = arguments.forward;
    reads_inputs(memory, a);
    memory.reads(arguments.grad_weighted_rows, num_elements(a));
    memory.reads(arguments.grad_weight_sums, a.sequences.count * a.num_heads);
    memory.reads(a.log_sum_exp, a.sequences.count * a.num_heads);
    memory.writes(a.weights, num_weights(a));
    memory.writes(arguments.grad_weights, num_weights(a));
    memory.writes(arguments.grad_query, num_elements(a));
  }

  MEZZO_DEVICE static void run(const Block& block, const FirstTokenBackwardArguments& arguments) {
    const FirstTokenArguments& a = arguments.forward;
    const Query query = query_of_block(block, a);
    const int lane = block.thread() % kWarp;
    float *const vector = block.shared<float>(), *const grad = vector + (a.hidden + 3) / 4 * 4;
    float *const weights = a.weights + query.weights, *const grads = arguments.grad_weights + query.weights;
    load_vector<kWhole, T>(block, a.query, query.at, a.hidden, a.scale, vector);
    load_vector<kWhole, T>(block, arguments.grad_weighted_rows, query.at, a.hidden, 1, grad);
    block.sync();
    const float log_sum_exp = a.log_sum_exp[query.number], grad_sum = arguments.grad_weight_sums[query.number];
    for_rows(block, query, [&](int j) {
      float score = 0, product = 0;
      for_fours_of_row<kWhole, T>(block, a, query.first_row + j, [&](int64_t d, const Four& x) {
        const auto q = load_pack(vector + d), g = load_pack(grad + d);
        for (int i = 0; i < 4; ++i) {
          score = ::fmaf(q.at[i], x.at[i], score);
          product = ::fmaf(g.at[i], x.at[i], product);
        }
      });
      score = warp_sum(block, score);
      product = warp_sum(block, product);
      if (lane == 0) {
        weights[j] = ::expf(score - log_sum_exp);
        grads[j] = product + grad_sum;
      }
    });
    block.sync();
    for_weights(block, a, query, [&](int j, float factor) { grads[j] = factor == 0 ? 0 : grads[j] * factor; });
    block.sync();
    const float mean = sum_over_keys(block, query, [&](int j) { return weights[j] * grads[j]; });
    block.sync();
    for_weights(block, a, query, [&](int j, float factor) {
      grads[j] = weights[j] * (grads[j] - mean);
      weights[j] *= factor;
    });
    block.sync();
    write_weighted_rows<kWhole, T>(block, a, query, grads, a.scale, arguments.grad_query);
  }
};

/// Rows that a block of FirstTokenRows takes, of all columns.
constexpr int kRows = 8;

/// Reads 2 vectors a head for its rows, and writes these: 4 FLOP per row, head and column.
template <class T, bool kWhole>
struct FirstTokenRows {
  template <class Memory>
  static void uses(Memory& memory, const FirstTokenBackwardArguments& arguments) {
    const FirstTokenArguments& a = arguments.forward;
    memory.reads(a.sequences.table, 2 * a.sequences.count);
    memory.reads(a.query, num_elements(a));
    memory.reads(arguments.grad_weighted_rows, num_elements(a));
    memory.reads(a.weights, num_weights(a));
    memory.reads(arguments.grad_weights, num_weights(a));
    memory.writes(arguments.grad_rows, a.sequences.num_rows * a.hidden);
  }

  MEZZO_DEVICE static void run(const Block& block, const FirstTokenBackwardArguments& arguments) {
    const FirstTokenArguments& a = arguments.forward;
    const int64_t parts = ceil_div(a.sequences.longest, kRows), sequence = block.index() / parts;
    const int first = static_cast<int>(block.index() % parts) * kRows;
    if (first == 0) {
      clear_rows_of_none(block, {arguments.grad_rows, a.hidden}, 0, a.hidden, a.sequences, sequence);
    }
    const int64_t first_row = a.sequences.table[2 * sequence] + first;
    const int left = a.sequences.table[2 * sequence + 1] - first, count = left < kRows ? left : kRows;
    if (count <= 0) {
      return;
    }
    struct Factors {
      float weight, score_grad;
    };
    auto* const factors = block.shared<Factors>();  // [heads, kRows]
    for (int i = block.thread(); i < a.num_heads * kRows; i += block.threads()) {
      const int head = i / kRows, row = i % kRows;
      const int64_t at = head * a.sequences.num_rows + first_row + row;
      factors[i] = row < count ? Factors{a.weights[at], arguments.grad_weights[at] * a.scale} : Factors{0, 0};
    }
    block.sync();
    for (int d = 4 * block.thread(); d < a.hidden; d += 4 * block.threads()) {
      Four sums[kRows] = {};
      for (int head = 0; head < a.num_heads; ++head) {
        const int64_t at = query_of(a, sequence, head).at;
        const Four q = Fours<kWhole>::template load<T>(a.query.data, at + d, at + a.hidden),
                   g = Fours<kWhole>::template load<T>(arguments.grad_weighted_rows.data, at + d, at + a.hidden);
        for (int row = 0; row < kRows; ++row) {
          const Factors factor = factors[head * kRows + row];
          for (int i = 0; i < 4; ++i) {
            sums[row].at[i] = ::fmaf(factor.weight, g.at[i], ::fmaf(factor.score_grad, q.at[i], sums[row].at[i]));
          }
        }
      }
      for (int row = 0; row < kRows; ++row) {
        if (row < count) {
          const int64_t at = (first_row + row) * a.hidden;
          Fours<kWhole>::store(arguments.grad_rows, at + d, at + a.hidden, sums[row]);
        }
      }
    }
  }
};

}  // namespace

void first_token_attention(const FirstTokenArguments& arguments, Stream stream) {
  with_type(arguments.query.element, [&]<class T>(T) {
    with_whole_fours(arguments.hidden, {arguments.query.data, arguments.rows.data, arguments.weighted_rows.data},
                     [&]<class Whole>(Whole) {
                       launch<FirstToken<T, Whole::value>>(
                           Grid{arguments.sequences.count * arguments.num_heads, kThreads,
                                padded(arguments.hidden) * static_cast<int>(sizeof(float))},
                           stream, arguments);
                     });
  });
}

void first_token_attention_backward(const FirstTokenBackwardArguments& arguments, Stream stream) {
  const auto& a = arguments.forward;
  constexpr int kFloat = sizeof(float);
  with_type(a.query.element, [&]<class T>(T) {
    with_whole_fours(
        a.hidden,
        {a.query.data, a.rows.data, arguments.grad_weighted_rows.data, arguments.grad_query.data,
         arguments.grad_rows.data},
        [&]<class Whole>(Whole) {
          launch<FirstTokenQueries<T, Whole::value>>(
              Grid{a.sequences.count * a.num_heads, kThreads, 2 * padded(a.hidden) * kFloat}, stream, arguments);
          launch<FirstTokenRows<T, Whole::value>>(Grid{a.sequences.count * ceil_div(a.sequences.longest, kRows),
                                                       kThreads, 2 * a.num_heads * kRows * kFloat},
                                                  stream, arguments);
        });
  });
}

}  // namespace mezzo::encoder::MEZZO_CUDA
