#include "encoder/cpu/simd/table.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {

const SimdKernels table = {.dropout = dropout,
                           .row_scratch = row_scratch,
                           .residual_layer_norm = residual_layer_norm,
                           .residual_layer_norm_backward = residual_layer_norm_backward,
                           .embedding_layer_norm = embedding_layer_norm,
                           .embedding_layer_norm_backward = embedding_layer_norm_backward,
                           .bias_activation = bias_activation,
                           .bias_activation_backward = bias_activation_backward,
                           .layer_norm = layer_norm,
                           .layer_norm_backward = layer_norm_backward,
                           .residual_dropout = residual_dropout,
                           .residual_dropout_backward = residual_dropout_backward,
                           .gated_activation = gated_activation,
                           .gated_activation_backward = gated_activation_backward,
                           .attention_scratch = attention_scratch,
                           .attention = attention,
                           .attention_backward = attention_backward,
#ifdef MEZZO_MATRIX_PRODUCTS
                           .products = &product_kernels,
                           .int8 = &int8_kernels,
#else
                           .products = nullptr,
                           .int8 = nullptr,
#endif
                           .peak = &peak_loops};

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
