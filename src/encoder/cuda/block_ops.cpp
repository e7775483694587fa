#include "encoder/cuda/block_ops.h"

namespace mezzo::encoder::MEZZO_CUDA {

const BlockOps kBlockOps = {.residual_layer_norm = residual_layer_norm,
                            .residual_layer_norm_backward = residual_layer_norm_backward,
                            .embedding_layer_norm = embedding_layer_norm,
                            .embedding_layer_norm_backward = embedding_layer_norm_backward,
                            .add_rows_at = add_rows_at,
                            .bias_activation = bias_activation,
                            .bias_activation_backward = bias_activation_backward,
                            .packed_attention = nullptr,
                            .packed_attention_backward = nullptr,
                            .first_token_attention = nullptr,
                            .first_token_attention_backward = nullptr};

}  // namespace mezzo::encoder::MEZZO_CUDA
