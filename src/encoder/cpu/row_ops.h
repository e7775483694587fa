#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "encoder/blocks.h"
#include "kernels/random_key.h"

/// The row-wise kernels on tensors, without autograd. On CPU, contiguous, float32, bfloat16 or float16; T rows. Small
/// vectors (biases, norms) may be of any of these types. Sums over rows do not depend on the number of threads.
namespace mezzo::encoder::cpu {

/// What backward needs of a layer norm; undefined where it was not asked for.
struct Normalised {
  at::Tensor rows;  ///< [T, H] float32: (x - mean) / std
  at::Tensor rstd;  ///< [T] float32
};

struct NormGradients {
  at::Tensor weight, bias;  ///< [H] float32
};

/// layer_norm(dropout(product + bias) + residual).
/// @param product, residual  [T, H]
/// @param row_numbers  [T] int64: rows of the dropout mask; undefined for 0 ... T - 1
/// @param normalised  nullptr if backward will not be called. `product` may be overwritten, and become part of it.
/// @return [T, H], of the wider dtype of `product` and `residual`
at::Tensor residual_layer_norm(const at::Tensor& product,
                               const at::Tensor& bias,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& dropout,
                               const at::Tensor& row_numbers,
                               Normalised* normalised);

struct ResidualLayerNormGradients {
  at::Tensor product;   ///< [T, H], `product_dtype`
  at::Tensor residual;  ///< [T, H], `residual_dtype`
  at::Tensor bias;      ///< [H] float32
  NormGradients norm;
};

ResidualLayerNormGradients residual_layer_norm_backward(const at::Tensor& grad,
                                                        const Normalised& normalised,
                                                        const at::Tensor& norm_weight,
                                                        const DropoutSite& dropout,
                                                        const at::Tensor& row_numbers,
                                                        at::ScalarType product_dtype,
                                                        at::ScalarType residual_dtype);

/// dropout(layer_norm(word[ids] + position[positions] + token_type[token_types])): [T, H], dtype of `word`. Types are 0
/// where `token_types` is undefined.
at::Tensor embedding_layer_norm(const at::Tensor& word,
                                const at::Tensor& position,
                                const at::Tensor& token_type,
                                const at::Tensor& ids,
                                const at::Tensor& positions,
                                const at::Tensor& token_types,
                                const LayerNormParams& norm,
                                const DropoutSite& dropout,
                                Normalised* normalised);

struct EmbeddingGradients {
  at::Tensor sum;  ///< [T, H] float32: of what each row summed
  NormGradients norm;
};

EmbeddingGradients embedding_layer_norm_backward(const at::Tensor& grad,
                                                 const Normalised& normalised,
                                                 const at::Tensor& norm_weight,
                                                 const DropoutSite& dropout);

/// table[indices[t]] += rows[t] for every t in turn. `rows` [T, H] float32; `table` [*, H] float32.
void add_rows_at(const at::Tensor& indices, const at::Tensor& rows, at::Tensor& table);

/// activation(product + bias): [T, F], dtype of `product`.
at::Tensor bias_activation(const at::Tensor& product, const at::Tensor& bias, Activation activation);

struct ActivationGradients {
  at::Tensor product;  ///< [T, F]
  at::Tensor output;   ///< [T, F]: of the forward pass, computed again
  at::Tensor bias;     ///< [F] float32
};

/// `grad`, of the dtype of `product`, is overwritten and becomes its gradient.
ActivationGradients bias_activation_backward(const at::Tensor& grad,
                                             const at::Tensor& product,
                                             const at::Tensor& bias,
                                             Activation activation);

}  // namespace mezzo::encoder::cpu
