#pragma once

#include <cstdint>

#include "encoder/activation.h"
#include "kernels/cpu/simd/elements.h"
#include "kernels/random_key.h"

// Code that is compiled once per instruction set, behind raw pointers. Rows of H elements lie side by side, row `begin`
// to `end - 1` are computed, sums are added to `sums`. Vectors of H elements (weights, biases) are float32. Every
// result is a function of the arguments alone.

namespace mezzo::encoder::cpu {

using kernels::cpu::ConstSpan;
using kernels::cpu::Element;
using kernels::cpu::Span;

/// Which elements are dropped: with probability threshold / 2^32; the others
/// are multiplied by `scale`.
struct Dropout {
  bool is_on;
  uint32_t threshold;
  float scale;
  kernels::RandomKey key;
};

/// A layer normalisation's `weight` and `bias` [H].
struct Norm {
  const float* weight;
  const float* bias;
  float eps;
};

/// output = layer_norm(dropout(product + bias) + residual). Row t is dropped as row `row_numbers[t]` of a tensor would
/// be, or as row t if `row_numbers` is nullptr.
struct ResidualLayerNorm {
  ConstSpan product;  ///< [T, H]; may be the memory of `normalised`
  const float* bias;
  ConstSpan residual;  ///< [T, H]
  Norm norm;
  Dropout dropout;
  const int64_t* row_numbers;  ///< [T]
  Span output;                 ///< [T, H]
  float* normalised;  ///< [T, H]: before `weight` and `bias` of the norm; nullptr if backward will not be called
  float* rstd;        ///< [T]; 1 / standard deviation; nullptr if `normalised` is
};

/// sums [3, H]: of grad_norm_weight, grad_norm_bias, grad_bias.
struct ResidualLayerNormBackward {
  ConstSpan grad_output;  ///< [T, H]
  const float* normalised;
  const float* rstd;
  const float* norm_weight;
  Dropout dropout;
  const int64_t* row_numbers;
  Span grad_residual;  ///< [T, H]
  Span grad_product;   ///< [T, H]
};

/// output = dropout(layer_norm(word[ids] + position[positions] + token_type[token_types])). Types
/// are 0 where `token_types` is nullptr.
struct EmbeddingLayerNorm {
  ConstSpan word;              ///< [vocabulary, H]
  ConstSpan position;          ///< [positions, H]
  const float* token_type;     ///< [types, H]
  const int64_t* ids;          ///< [T]
  const int64_t* positions;    ///< [T]
  const int64_t* token_types;  ///< [T]
  Norm norm;
  Dropout dropout;
  Span output;        ///< [T, H]
  float* normalised;  ///< as in ResidualLayerNorm
  float* rstd;
};

/// sums [2, H]: of grad_norm_weight, grad_norm_bias.
struct EmbeddingLayerNormBackward {
  ConstSpan grad_output;  ///< [T, H]
  const float* normalised;
  const float* rstd;
  const float* norm_weight;
  Dropout dropout;
  float* grad_sum;  ///< [T, H]: of the sum of the three embeddings
};

/// output = activation(product + bias).
struct BiasActivation {
  ConstSpan product;  ///< [T, F]; all spans hold the same elements
  const float* bias;
  Activation kind;
  Span output;  ///< [T, F]
};

/// sums [1, F]: of grad_product, which is grad_bias.
struct BiasActivationBackward {
  ConstSpan product;  ///< [T, F]; all spans hold the same elements
  const float* bias;
  Activation kind;
  ConstSpan grad_output;  ///< [T, F]
  Span grad_product;      ///< [T, F]; may be the memory of grad_output
  Span output;            ///< [T, F]: of the forward pass, once more; may be the memory of `product`
};

/// output = layer_norm(x).
struct LayerNorm {
  ConstSpan x;  ///< [T, H]
  Norm norm;
  Span output;        ///< [T, H]
  float* normalised;  ///< as in ResidualLayerNorm
  float* rstd;
};

/// sums [2, H]: of grad_norm_weight, grad_norm_bias.
struct LayerNormBackward {
  ConstSpan grad_output;  ///< [T, H]
  const float* normalised;
  const float* rstd;
  const float* norm_weight;
  ConstSpan residual;  ///< [T, H], added to grad_x; or data nullptr
  Span grad_x;         ///< [T, H]
};

/// output = dropout(product + bias) + residual; row numbers as in ResidualLayerNorm.
struct ResidualDropout {
  ConstSpan product;  ///< [T, H]
  const float* bias;
  ConstSpan residual;  ///< [T, H]
  Dropout dropout;
  const int64_t* row_numbers;  ///< [T]
  Span output;                 ///< [T, H]
};

/// sums [1, H]: of grad_product, which is grad_bias.
struct ResidualDropoutBackward {
  ConstSpan grad_output;  ///< [T, H]
  Dropout dropout;
  const int64_t* row_numbers;
  Span grad_product;  ///< [T, H]
};

/// output = dropout(activation(a) * b) for the halves a and b of product + bias; row numbers as in ResidualLayerNorm.
struct GatedActivation {
  ConstSpan product;  ///< [T, 2 F]; all spans hold the same elements
  const float* bias;  ///< [2 F]
  Activation kind;
  Dropout dropout;
  const int64_t* row_numbers;  ///< [T]
  Span output;                 ///< [T, F]
};

/// sums [2, F]: of grad_product, which is grad_bias; or nullptr.
struct GatedActivationBackward {
  GatedActivation forward;  ///< its output, computed once more, may be the memory of grad_output
  ConstSpan grad_output;    ///< [T, F]
  Span grad_product;        ///< [T, 2 F]
};

/// Terms that relative positions add to scores, before `scale`. The score of query i and key j gains query_i . key[r] +
/// query[r] . key_j, r = rows[i - j] - rows[the least distance].
struct RelativeTile {
  ConstSpan key = {}, query = {};                          ///< [num_rows, D]; data nullptr if the term is left out
  int64_t key_stride = 0, query_stride = 0, num_rows = 0;  ///< num_rows is 0 without relative positions
  const int64_t* rows = nullptr;                           ///< of distance 0
  int64_t first_row = 0;                                   ///< the row of the least distance
};

/// Keys that attention looks at at a time. Longer sequences need scratch for this number alone, and their sums differ
/// in the last bits from sums of one pass. Relative positions, and values that are keys, take all keys at once.
constexpr int64_t kKeyTile = 512;

/// softmax(Q K^T * scale) V of one sequence and head, D columns wide. Rows are `stride`
/// elements apart. Query i draws the blocks {key / 4, first_query_number + i *
/// query_number_step, step, site}, word key % 4.
struct AttentionTile {
  ConstSpan query, key, value;
  bool values_are_keys;  ///< then the fields of `value` are ignored
  int64_t query_stride, key_stride, value_stride;
  const float *query_bias, *key_bias, *value_bias;  ///< [D], added to each row; or nullptr
  int64_t num_queries, num_keys, head_size;
  float scale;     ///< of the scores
  float soft_cap;  ///< c: a scaled score s becomes c * tanh(s / c); 0 for none
  Dropout dropout;
  uint32_t first_query_number, query_number_step;
  const float* rotary;              ///< [.., D], encoder::rotary_table: query and key i are turned by row i; or nullptr
  int64_t keys_before, keys_after;  ///< query i sees keys i - keys_before to i + keys_after
  Span output;                      ///< [num_queries, D]
  int64_t output_stride;
  float* log_sum_exp;  ///< [num_queries], `query_number_step` apart, divided by what scores are multiplied by, for
                       ///< a lone key's weight to be 1; nullptr if backward will not be called
  float* weight_sums;  ///< [num_queries], as far apart: sums of the weights after dropout; nullptr if not needed
  RelativeTile relative = {};  ///< where every query sees all keys
};

/// sums: three of [D], for the biases of query, key and value, `sum_stride`
/// apart, overwritten; or nullptr.
struct AttentionTileBackward {
  AttentionTile forward;                  ///< output and weight_sums are not touched
  ConstSpan grad_output;                  ///< strides as output
  ConstSpan output;                       ///< of forward, with its strides; read if there are several tiles of keys
  const float* grad_weight_sums;          ///< as weight_sums; nullptr for zeros
  Span grad_query, grad_key, grad_value;  ///< strides as query, key, value; grad_key of both where values are keys
  float* sums;
  int64_t sum_stride;
  float *grad_relative_key = nullptr, *grad_relative_query = nullptr;  ///< [num_rows, D], added to
  int64_t relative_stride = 0;                                         ///< of their rows
};

/// Element (i, j) lies i * row + j * column elements behind the first; one of the two is 1.
struct MatrixView {
  ConstSpan elements;
  int64_t row, column;
};

/// Rows of `ProductRows` that are computed at a time, at most.
constexpr int64_t kLargestRowBlock = 96;

/// a b: [M, depth] times [depth, N], of the same elements. Of b, panels of `panel_columns` columns.
struct ProductTerm {
  MatrixView a;
  const float* packed;
  int64_t depth;
};

/// output = [output +] the sum of the terms, [M, N], rounded once. An element's value depends on
/// its row and column alone, not on the rows and columns that are computed with it.
struct ProductRows {
  const ProductTerm* terms;
  int64_t num_terms;
  int64_t first_column;  ///< of those to compute, the first of a panel
  int64_t columns;       ///< to compute
  int64_t stride;        ///< N
  Span output;           ///< contiguous
  bool adds;
};

/// One instruction set's matrix products. Panels are `panel_columns` columns of a matrix [depth,
/// N], in `panel_rows` rows of words of a float's size: float32 values, or pairs of bfloat16.
struct ProductKernels {
  int64_t tile_rows;  ///< of which tasks should have a multiple
  int64_t panel_columns;
  int64_t (*panel_rows)(Element element, int64_t depth);
  /// `columns` of b from `first_column` on, a multiple of panel_columns; zeros behind the last one. `packed` holds
  /// whole panels.
  void (*pack_panels)(const MatrixView& b, int64_t first_column, int64_t columns, int64_t depth, float* packed);
  int64_t (*scratch)(int64_t columns);  ///< floats for `rows`
  /// Rows `begin` to `end` - 1, at most kLargestRowBlock of them.
  void (*rows)(const ProductRows&, int64_t begin, int64_t end, float* scratch);
};

/// Rows of floats become integers q with x ~ scale * q. The scale is width / kInt8Steps, with width = max(x, 0) -
/// min(x, 0) of the row. Then q = min(round(x / scale), round(min(x, 0) / scale) + kInt8Steps).
constexpr int32_t kInt8Steps = 255;
/// A row of less width is all zeros: its 1 / scale may be no number.
constexpr float kInt8Smallest = 0x1p-120f;

/// Such rows.
struct Int8Rows {
  char* values;    ///< [M, row_bytes]: integers, or how much more than the row's least they are
  float* scales;   ///< [M]
  int32_t* least;  ///< [M]: 0 where values are the integers
  int64_t depth;
};

/// output[i, j] = (rows.scales[i] * scales[j]) * sum over k of q[i, k] * w[k, j], w [depth, N] int8. The sum is exact,
/// the scaling is float32, and the result is rounded once more if output has less precision.
struct Int8Product {
  Int8Rows rows;
  const int32_t* packed;
  const float* scales;         ///< [N], and up to a whole panel of anything
  const int32_t* weight_sums;  ///< [N], up to a whole panel: sums of each column
  int64_t first_column;        ///< to compute, the first of a panel
  int64_t last_column;         ///< behind the last to compute
  int64_t columns;             ///< N
  Span output;                 ///< [M, N], contiguous
};

/// One instruction set's products of int8.
struct Int8Kernels {
  int64_t tile_rows;  ///< of which tasks should have a multiple
  int64_t panel_columns;
  int64_t (*row_bytes)(int64_t depth);  ///< of Int8Rows, and of a column of packed panels
  /// Rows `begin` to `end` - 1 of x, `row_stride` elements apart; q to nearest even. A row with inf or NaN, or whose
  /// width is not finite, has the scale NaN.
  void (*quantize_rows)(ConstSpan x, int64_t row_stride, const Int8Rows& to, int64_t begin, int64_t end);
  /// `count` columns from `first` on, a multiple of panel_columns, which lie in `weights` as rows do, `row_stride`
  /// bytes apart. `packed` and `sums` hold whole panels.
  void (*pack_panels)(const int8_t* weights,
                      int64_t row_stride,
                      int64_t first,
                      int64_t count,
                      int64_t depth,
                      int32_t* packed,
                      int32_t* sums);
  void (*rows)(const Int8Product&, int64_t begin, int64_t end);
};

/// One kind of multiplication, over and over in registers. Half of the operations are multiplications, each of ones:
/// `run` returns how many it did, while float32 and int32 hold the number.
struct PeakLoop {
  float (*run)(int64_t rounds) = nullptr;  ///< null if the instruction is missing
  double operations_of_a_round = 0;
};
struct PeakLoops {
  PeakLoop float32, bfloat16, int8;
};

/// One instruction set's kernels. `scratch` is for kernel and call alone, of the size that the
/// function beside it tells.
struct SimdKernels {
  /// Elements `first` ... `first + count - 1` of `x`, of the same type in `output`;
  /// `first` is a multiple of 128.
  void (*dropout)(ConstSpan x, Span output, int64_t first, int64_t count, const Dropout& dropout);

  int64_t (*row_scratch)(int64_t columns);  ///< floats, for all row kernels
  void (*residual_layer_norm)(const ResidualLayerNorm&, int64_t begin, int64_t end, int64_t columns, float* scratch);
  void (*residual_layer_norm_backward)(
      const ResidualLayerNormBackward&, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
  void (*embedding_layer_norm)(const EmbeddingLayerNorm&, int64_t begin, int64_t end, int64_t columns, float* scratch);
  void (*embedding_layer_norm_backward)(
      const EmbeddingLayerNormBackward&, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
  void (*bias_activation)(const BiasActivation&, int64_t begin, int64_t end, int64_t columns);
  void (*bias_activation_backward)(
      const BiasActivationBackward&, int64_t begin, int64_t end, int64_t columns, float* sums);

  void (*layer_norm)(const LayerNorm&, int64_t begin, int64_t end, int64_t columns, float* scratch);
  void (*layer_norm_backward)(
      const LayerNormBackward&, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
  void (*residual_dropout)(const ResidualDropout&, int64_t begin, int64_t end, int64_t columns, float* scratch);
  void (*residual_dropout_backward)(
      const ResidualDropoutBackward&, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
  void (*gated_activation)(const GatedActivation&, int64_t begin, int64_t end, int64_t columns, float* scratch);
  void (*gated_activation_backward)(
      const GatedActivationBackward&, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);

  /// Floats, for forward and backward. With relative positions or values that are keys, all keys are one tile.
  /// @param relative_rows  RelativeTile::num_rows
  int64_t (*attention_scratch)(
      int64_t num_queries, int64_t num_keys, int64_t head_size, int64_t relative_rows, bool values_are_keys);
  void (*attention)(const AttentionTile&, float* scratch);
  void (*attention_backward)(const AttentionTileBackward&, float* scratch);

  const ProductKernels* products;  ///< null for baseline, where LibTorch's are the faster ones
  const Int8Kernels* int8;         ///< null for baseline
  const PeakLoops* peak;
};

/// Those for `instruction_set()`.
const SimdKernels& simd_kernels();

}  // namespace mezzo::encoder::cpu
