#pragma once

#include "encoder/attention_rule.h"
#include "encoder/cuda/mask_arguments.h"
#include "kernels/cuda/arguments.h"

/// The kernels of packed attention, each queued on a stream of the current device. Matrices have a row per token.
namespace mezzo::encoder::MEZZO_CUDA {

using namespace kernels::MEZZO_CUDA;  // the thin layer, elements

/// The places of the sequences: at least one, in order of their rows.
struct SequenceSpans {
  const int32_t* table;  ///< [count, 2]: first row and number of tokens of each sequence
  int64_t count;
  int64_t num_rows;  ///< of the matrices; rows of no sequence are set to zero in results
  int longest;       ///< no sequence has more tokens
};

/// The largest number of columns of a head.
constexpr int kLargestHead = 256;

/// A matrix, its rows `row_stride` elements apart: it may be columns of a wider one.
struct RowsSpan : Span {
  int64_t row_stride = 0;
};

/// Terms of scores for relative positions (encoder/relative_positions.h), before the scale. Query i and key j get,
/// with r = rows[i - j], entry r of the query's line plus entry r of the key's line.
struct RelativeScores {
  const int64_t* rows = nullptr;      ///< of distance 0; 1 - longest ... longest - 1 lie around it; nullptr for none
  int num_rows = 0;                   ///< R, of the tables
  const float* of_queries = nullptr;  ///< [num_heads, rows of `query`, R]; nullptr leaves the term out
  const float* of_keys = nullptr;     ///< [num_heads, rows of `key`, R]; nullptr leaves the term out
};

/// All matrices are of the dtype of `query`.
struct PackedAttentionArguments {
  AttentionRule rule;
  RowsSpan query, key, value;             ///< [num_rows, num_heads * head_size]; `query` [count, ...] for first queries
  Span query_bias, key_bias, value_bias;  ///< [num_heads * head_size], of any type; or none
  SequenceSpans sequences;
  Mask mask;
  const float* rotary;      ///< [longest, head_size], which turns queries and keys; nullptr for none
  RelativeScores relative;  ///< not with a window, a soft cap or a rotary table
  RowsSpan output;          ///< as `query`; backward reads it
  float* log_sum_exp;       ///< [rows of `query`, num_heads]; nullptr leaves it out
};
void packed_attention(const PackedAttentionArguments& arguments, Stream stream);

struct PackedAttentionBackwardArguments {
  PackedAttentionArguments forward;
  RowsSpan grad;                              ///< of the output
  float* products;                            ///< room, as log_sum_exp
  RowsSpan grad_query, grad_key, grad_value;  ///< as the inputs
  float* bias_sums;  ///< [count, bias_parts, 3, num_heads * head_size], to be summed over both; nullptr for no biases
  Span grad_of_queries, grad_of_keys;  ///< as `relative` has them, of the dtype of `query`; zeros before
};
/// Bit-identical in every run: no sum has two writers.
void packed_attention_backward(const PackedAttentionBackwardArguments& arguments, Stream stream);

/// Whether the current device has the shared memory that these kernels need at least, whatever the lengths.
/// @param has_extra_terms  whether there are relative positions or a soft cap
bool has_memory_for_heads(Element element, int64_t head_size, bool has_extra_terms);

/// The number of parts of a sequence's sums for its biases.
int64_t bias_parts(const PackedAttentionArguments& arguments);

}  // namespace mezzo::encoder::MEZZO_CUDA
