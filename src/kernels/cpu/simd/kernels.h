#pragma once

#include <cstdint>

#include "kernels/cpu/simd/elements.h"
#include "kernels/cpu/simd/philox.h"

// What is compiled once per instruction set, behind raw pointers: rows of H elements lie side by side, row `begin` to
// `end - 1` are computed, sums are added to `sums`. Vectors of H elements (weights, biases) are float32. Every result
// is a function of the arguments alone.

namespace mezzo::kernels::cpu {

/// A layer normalisation's `weight` and `bias` [H].
struct Norm {
  const float* weight;
  const float* bias;
  float eps;
};

/// output = layer_norm(dropout(product + bias) + residual). Row t is dropped as row `row_numbers[t]` of a tensor would
/// be, or as row t where that is nullptr.
struct ResidualLayerNorm {
  ConstSpan product;  ///< [T, H]; may be the memory of `normalised`
  const float* bias;
  ConstSpan residual;  ///< [T, H]
  Norm norm;
  Dropout dropout;
  const int64_t* row_numbers;  ///< [T]
  Span output;                 ///< [T, H]
  float* normalised;  ///< [T, H]: before `weight` and `bias` of the norm; nullptr if backward will not be called
  float* rstd;        ///< [T]; 1 / standard deviation; or nullptr likewise
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

/// output = dropout(layer_norm(word[ids] + position[positions] + token_type)).
struct EmbeddingLayerNorm {
  ConstSpan word;      ///< [vocabulary, H]
  ConstSpan position;  ///< [positions, H]
  const float* token_type;
  const int64_t* ids;        ///< [T]
  const int64_t* positions;  ///< [T]
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

enum class ActivationKind { kGelu, kGeluTanh, kRelu };

/// output = activation(product + bias).
struct BiasActivation {
  ConstSpan product;  ///< [T, F]
  const float* bias;
  ActivationKind kind;
  Span output;  ///< [T, F]
};

/// sums [1, F]: of grad_product, which is grad_bias.
struct BiasActivationBackward {
  ConstSpan product;
  const float* bias;
  ActivationKind kind;
  ConstSpan grad_output;  ///< [T, F]
  Span grad_product;      ///< [T, F]; may be the memory of grad_output
  Span output;            ///< [T, F]: of the forward pass, once more; may be the memory of `product`
};

/// softmax(Q K^T * scale) V of one sequence and head, D columns wide. Rows are `stride` elements apart. Query i draws
/// the blocks {key / 4, first_query_number + i * query_number_step, step, site}, word key % 4.
struct AttentionTile {
  ConstSpan query, key, value;
  int64_t query_stride, key_stride, value_stride;
  const float *query_bias, *key_bias, *value_bias;  ///< [D], added to each row
  int64_t num_queries, num_keys, head_size;
  float scale;  ///< of the scores
  Dropout dropout;
  uint32_t first_query_number, query_number_step;
  Span output;  ///< [num_queries, D]
  int64_t output_stride;
  float* log_sum_exp;  ///< [num_queries], `query_number_step` apart; nullptr if backward will not be called
};

/// sums: three of [D], for the biases of query, key and value, `sum_stride` apart; overwritten.
struct AttentionTileBackward {
  AttentionTile forward;                  ///< output is not read
  ConstSpan grad_output;                  ///< strides as output
  Span grad_query, grad_key, grad_value;  ///< strides as query, key, value
  float* sums;
  int64_t sum_stride;
};

/// One instruction set's kernels. `scratch` is for kernel and call alone, of the size that the function beside it
/// tells.
struct SimdKernels {
  const char* name;

  int64_t (*row_scratch)(int64_t columns);  ///< floats, for all row kernels
  void (*residual_layer_norm)(const ResidualLayerNorm&, int64_t begin, int64_t end, int64_t columns, float* scratch);
  void (*residual_layer_norm_backward)(
      const ResidualLayerNormBackward&, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
  void (*embedding_layer_norm)(const EmbeddingLayerNorm&, int64_t begin, int64_t end, int64_t columns, float* scratch);
  void (*embedding_layer_norm_backward)(
      const EmbeddingLayerNormBackward&, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
  void (*bias_activation)(const BiasActivation&, int64_t begin, int64_t end, int64_t columns, float* scratch);
  void (*bias_activation_backward)(
      const BiasActivationBackward&, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);

  int64_t (*attention_scratch)(int64_t num_keys, int64_t head_size);  ///< floats, for forward and backward
  void (*attention)(const AttentionTile&, float* scratch);
  void (*attention_backward)(const AttentionTileBackward&, float* scratch);
};

/// Those for the best instruction set that this machine has; an environment variable, MEZZO_CPU_CAPABILITY, chooses
/// lesser one: baseline, avx2, avx512. @throws c10::ValueError  for another
const SimdKernels& simd_kernels();

/// All that this machine can run, the least first.
struct SimdKernelList {
  const SimdKernels* kernels[3];
  int count;
};
SimdKernelList all_simd_kernels();

}  // namespace mezzo::kernels::cpu
