#pragma once

#include "encoder/blocks.h"

/// The blocks, of two or three nodes of the graph (fused/nodes.h): matrix products by Products, all between them by the
/// device's BlockOps. Results equal the compositions' up to rounding, with the same dropout masks. Once differentiable.
namespace mezzo::encoder::fused {

/// Whether these blocks can take `x`, T rows, now. They need a device with BlockOps, and float32, bfloat16 or float16.
/// No op policy or FiniteTracer may want to see single operations. If not, use the compositions.
bool can_run(const at::Tensor& x);

/// Whether attention can run: also, the device's kernels take such heads.
bool can_attend(const at::Tensor& x, const AttentionDescription& attention);

at::Tensor embeddings(const at::Tensor& word,
                      const at::Tensor& position,
                      const at::Tensor& token_type,
                      const at::Tensor& ids,
                      const at::Tensor& positions,
                      const at::Tensor& token_types,
                      const LayerNormParams& norm,
                      const DropoutSite& dropout);
at::Tensor attention(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout);
at::Tensor feed_forward(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers);
/// x weight^T + bias of a layer that is not trained; its LoRA factors are left out.
at::Tensor frozen_linear(const at::Tensor& x, const LinearParams& params);

}  // namespace mezzo::encoder::fused
