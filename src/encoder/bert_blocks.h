#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/random_key.h"

/// The row-wise parts of a BERT layer, each one kernel wide. T rows, H hidden
/// units, F feed-forward units. All differentiable; ops inside follow autocast.
namespace mezzo::kernels {

enum class Activation { kGelu, kGeluTanh, kRelu };

/// Scale and shift of a layer normalisation: `weight` and `bias` [H].
struct LayerNormParams {
  const at::Tensor& weight;
  const at::Tensor& bias;
  double eps;
};

/// dropout(layer_norm(word[ids] + position[positions] + token_type[0])).
/// @param word, position, token_type  tables [*, H]
/// @param ids, positions  [T] int64
/// @return [T, H]
at::Tensor embedding_layer_norm(const at::Tensor& word,
                                const at::Tensor& position,
                                const at::Tensor& token_type,
                                const at::Tensor& ids,
                                const at::Tensor& positions,
                                const LayerNormParams& norm,
                                const DropoutSite& dropout);

/// activation(x weight^T + bias). `x` [T, H], `weight` [F, H], `bias` [F]; returns [T, F].
at::Tensor linear_activation(const at::Tensor& x,
                             const at::Tensor& weight,
                             const at::Tensor& bias,
                             Activation activation);

/// layer_norm(dropout(x) + residual). `x`, `residual` [T, H]; returns [T, H].
at::Tensor residual_layer_norm(const at::Tensor& x,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& dropout);

}  // namespace mezzo::kernels
