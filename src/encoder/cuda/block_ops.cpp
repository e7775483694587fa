#include "encoder/cuda/block_ops.h"

#include "encoder/cuda/attention_launchers.h"

namespace mezzo::encoder::MEZZO_CUDA {

const BlockOps kBlockOps = {.largest_head = kLargestHead,
                            .residual_layer_norm = residual_layer_norm,
                            .residual_layer_norm_backward = residual_layer_norm_backward,
                            .embedding_layer_norm = embedding_layer_norm,
                            .embedding_layer_norm_backward = embedding_layer_norm_backward,
                            .add_rows_at = add_rows_at,
                            .bias_activation = bias_activation,
                            .bias_activation_backward = bias_activation_backward,
                            .packed_attention = packed_attention,
                            .packed_attention_backward = packed_attention_backward,
                            .first_token_attention = first_token_attention,
                            .first_token_attention_backward = first_token_attention_backward};

}  // namespace mezzo::encoder::MEZZO_CUDA
