#pragma once

#include "encoder/cpu/simd/kernels.h"
#include "kernels/cpu/simd/simd.h"

/// The kernels of one instruction set, a file for each kind.
namespace mezzo::encoder::cpu::MEZZO_SIMD {

using namespace kernels::cpu::MEZZO_SIMD;  // vectors, and elements loaded into them

void dropout(ConstSpan x, Span output, int64_t first, int64_t count, const Dropout& dropout);

int64_t row_scratch(int64_t columns);
void residual_layer_norm(const ResidualLayerNorm& op, int64_t begin, int64_t end, int64_t columns, float* scratch);
void residual_layer_norm_backward(
    const ResidualLayerNormBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
void embedding_layer_norm(const EmbeddingLayerNorm& op, int64_t begin, int64_t end, int64_t columns, float* scratch);
void embedding_layer_norm_backward(
    const EmbeddingLayerNormBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
void bias_activation(const BiasActivation& op, int64_t begin, int64_t end, int64_t columns);
void bias_activation_backward(
    const BiasActivationBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums);

void layer_norm(const LayerNorm& op, int64_t begin, int64_t end, int64_t columns, float* scratch);
void layer_norm_backward(
    const LayerNormBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
void residual_dropout(const ResidualDropout& op, int64_t begin, int64_t end, int64_t columns, float* scratch);
void residual_dropout_backward(
    const ResidualDropoutBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);
void gated_activation(const GatedActivation& op, int64_t begin, int64_t end, int64_t columns, float* scratch);
void gated_activation_backward(
    const GatedActivationBackward& op, int64_t begin, int64_t end, int64_t columns, float* sums, float* scratch);

int64_t attention_scratch(
    int64_t num_queries, int64_t num_keys, int64_t head_size, int64_t relative_rows, bool values_are_keys);
void attention(const AttentionTile& tile, float* scratch);
void attention_backward(const AttentionTileBackward& tile, float* scratch);

#ifdef MEZZO_MATRIX_PRODUCTS
extern const ProductKernels product_kernels;
extern const Int8Kernels int8_kernels;
#endif

extern const PeakLoops peak_loops;

extern const SimdKernels table;

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
