#pragma once

#include "encoder/cuda/mask_arguments.h"
#include "kernels/cuda/arguments.h"

/// The kernels of attention, each queued on a stream of the current device. Matrices
/// have a row a token, and are read and written as the first of their arguments' type
/// where nothing else is said.
namespace mezzo::encoder::MEZZO_CUDA {

using namespace kernels::MEZZO_CUDA;  // the thin layer, elements

/// Where the sequences lie: at least one, in order of their rows.
struct SequenceSpans {
  const int32_t* table;  ///< [count, 2]: each one's first row and number of tokens
  int64_t count;
  int64_t num_rows;  ///< of the matrices; those of no sequence are set to zero in what is written
  int longest;       ///< tokens
};

/// Columns of a head that the kernels of packed attention can take.
constexpr int kLargestHead = 256;

/// A matrix, its rows `row_stride` elements apart: it may be columns of another.
struct RowsSpan : Span {
  int64_t row_stride = 0;
};

/// What scores get for distances (encoder/relative_positions.h), yet to be scaled: of query i and key j, with
/// r = rows[i - j], entry r of the query's line and of the key's.
struct RelativeScores {
  const int64_t* rows = nullptr;  ///< of distance 0: those of 1 - longest ... longest - 1 lie around it; or none
  int num_rows = 0;               ///< of the tables, R
  /// [num_heads, rows of `query`, R]: products of queries with the table of keys; nullptr leaves them out.
  const float* of_queries = nullptr;
  /// [num_heads, rows of `key`, R], of lone first queries [num_heads, rows of `key`]; likewise.
  const float* of_keys = nullptr;
};

struct PackedAttentionArguments {
  RowsSpan query, key, value;             ///< [num_rows, num_heads * head_size], but see only_first_queries
  Span query_bias, key_bias, value_bias;  ///< [num_heads * head_size], of any type
  SequenceSpans sequences;
  int num_heads, head_size;
  float scale;  ///< of the scores
  Mask mask;
  const float* rotary;      ///< [longest, head_size], which turns queries and keys; nullptr for none
  int window;               ///< a query sees keys at most so far from it
  bool only_first_queries;  ///< `query`, and what is as it, has a row a sequence, its first: [count, ...]
  RowsSpan output;          ///< as `query`; in backward what forward wrote, which the kernels by tensor cores read
  float* log_sum_exp;       ///< as `query`, a number a head; nullptr leaves it out
  RelativeScores relative;  ///< not with a window or a rotary table
  bool has_tensor_cores;    ///< that multiply the half types: compute capability 8.0
};
void packed_attention(const PackedAttentionArguments& arguments, Stream stream);

struct PackedAttentionBackwardArguments {
  PackedAttentionArguments forward;
  RowsSpan grad;                              ///< of the output
  float* products;                            ///< room: as log_sum_exp; the kernels by tensor cores do without
  RowsSpan grad_query, grad_key, grad_value;  ///< as the inputs
  /// [count, bias_parts, 3, num_heads * head_size]: to be summed over both; nullptr where there are no biases
  float* bias_sums;
  Span grad_of_queries, grad_of_keys;  ///< as `relative` has them; zeros, which entries of no distance stay
};
void packed_attention_backward(const PackedAttentionBackwardArguments& arguments, Stream stream);

/// In how many parts a sequence adds to the biases' gradients.
int64_t bias_parts(const PackedAttentionArguments& arguments);

/// Texts of at most 128 tokens in half precision, whose heads have 32 or 64 columns: what packed_attention and
/// packed_attention_backward call for these. A sequence has one part.
bool suits_tensor_cores(const PackedAttentionArguments& arguments);
void tensor_core_attention(const PackedAttentionArguments& arguments, Stream stream);
void tensor_core_attention_backward(const PackedAttentionBackwardArguments& arguments, Stream stream);

/// What a lone first query's scores get of the table of queries: a product for each key.
struct FirstQueryScoresArguments {
  RowsSpan key;  ///< [num_rows, num_heads * head_size]
  Span table;    ///< [R, num_heads * head_size]
  SequenceSpans sequences;
  int num_heads, head_size;
  const int64_t* rows;  ///< as RelativeScores has them
  int num_rows;         ///< R
  float* scores;        ///< [num_heads, num_rows]; not for backward
};
void first_query_scores(const FirstQueryScoresArguments& arguments, Stream stream);

struct FirstQueryScoresBackwardArguments {
  FirstQueryScoresArguments forward;
  Span grad_scores;   ///< [num_heads, num_rows]
  RowsSpan grad_key;  ///< as `key`; added to
  float* grad_table;  ///< as `table`
};
void first_query_scores_backward(const FirstQueryScoresBackwardArguments& arguments, Stream stream);

struct FirstTokenArguments {
  Span query;  ///< [num_heads, count, hidden]
  Span rows;   ///< [num_rows, hidden]
  SequenceSpans sequences;
  int num_heads, hidden;
  float scale;  ///< of the scores
  Mask mask;
  float* weights;      ///< room: [num_heads, num_rows]
  Span weighted_rows;  ///< as `query`; not for backward
  float* weight_sums;  ///< [count, num_heads]; not for backward
  float* log_sum_exp;  ///< [count, num_heads]; nullptr leaves it out
};
void first_token_attention(const FirstTokenArguments& arguments, Stream stream);

struct FirstTokenBackwardArguments {
  FirstTokenArguments forward;
  Span grad_weighted_rows;        ///< as `query`
  const float* grad_weight_sums;  ///< [count, num_heads]
  float* grad_weights;            ///< room: [num_heads, num_rows]
  Span grad_query;                ///< as `query`
  Span grad_rows;                 ///< [num_rows, hidden], of any type
};
void first_token_attention_backward(const FirstTokenBackwardArguments& arguments, Stream stream);

}  // namespace mezzo::encoder::MEZZO_CUDA
