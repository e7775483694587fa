#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "encoder/attention.h"
#include "encoder/blocks.h"
#include "encoder/dropout_site.h"

/// The computations of fused blocks between matrix products, without autograd, for each kind of device.
namespace mezzo::encoder {

/// A layer norm's results besides its output, if backward will be called.
struct Normalised {
  at::Tensor rows;  ///< [T, H]: (x - mean) / std; in float32, or the dtype of the product or output
  at::Tensor rstd;  ///< [T] float32
  /// The output in the dtype of the product, for the next products. Undefined if they have one dtype, or the device
  /// does not write it in the same pass.
  at::Tensor copy = {};
};

struct NormGradients {
  at::Tensor weight, bias;  ///< [H] float32
};

struct ResidualLayerNormGradients {
  at::Tensor product;   ///< [T, H], `product_dtype`
  at::Tensor residual;  ///< [T, H], `residual_dtype`
  at::Tensor bias;      ///< [H] float32
  NormGradients norm;
};

struct EmbeddingGradients {
  at::Tensor sum;  ///< [T, H] float32: gradient of each row's sum
  NormGradients norm;
};

struct ActivationGradients {
  at::Tensor product;  ///< [T, F]
  at::Tensor output;   ///< [T, F]: of the forward pass, computed again
  at::Tensor bias;     ///< [F] float32
};

/// Attention of the B sequences' first tokens to rows of which keys and values are linear functions, so that neither
/// need be computed: query . (W row) = (W^T query) . row, and a sum of weights times W row + b is W (sum of weights
/// times row) + (sum of weights) b. A bias of the keys shifts all scores of a query equally, which softmax does not
/// see.
struct FirstTokenAttention {
  at::Tensor query;  ///< [num_heads, B, H]: for each head, W^T times the part of the query that is the head's
  at::Tensor rows;   ///< [T, H], dtype of `query`
  float scale;       ///< of the scores
  SequenceLayoutPtr layout;
  DropoutSite dropout;  ///< of the weights, as in AttentionDescription
};

struct WeightedRows {
  at::Tensor rows;         ///< [num_heads, B, H]: sums of weights times rows; dtype of `query`
  at::Tensor weight_sums;  ///< [B, num_heads] float32
};

struct FirstTokenGradients {
  at::Tensor query;  ///< as the input
  at::Tensor rows;   ///< [T, H], `rows_dtype`; zero in rows of padding and filler
};

struct LayerNormGradients {
  at::Tensor x;  ///< [T, H]
  NormGradients norm;
};

struct ResidualDropoutGradients {
  at::Tensor product;  ///< [T, H]
  at::Tensor bias;     ///< [H] float32; undefined if it was not asked for
};

/// Contiguous tensors of one device; float32, bfloat16 or float16; T rows. Small vectors (biases, norms) may be of any
/// of these types. A bias is added to its product, or to query, key or value, as their dtype holds it. Sums over rows
/// do not depend on the number of threads. Nothing waits for the device.
struct BlockOps {
  /// Whether weights of query, key and value that lie side by side make one product, and the
  /// gradients are always columns of one matrix.
  bool takes_columns;

  /// One application of the mask. `x`: of any shape.
  at::Tensor (*dropout)(const at::Tensor& x, const DropoutSite& site);

  /// layer_norm(dropout(product + bias) + residual).
  /// @param product, residual  [T, H]
  /// @param row_numbers  [T] int64: rows of the dropout mask; undefined for 0 ... T - 1
  /// @param normalised  nullptr if backward will not be called. `product` may be
  ///   overwritten, and become part of it.
  /// @return [T, H], of the wider dtype of `product` and `residual`
  at::Tensor (*residual_layer_norm)(const at::Tensor& product,
                                    const at::Tensor& bias,
                                    const at::Tensor& residual,
                                    const LayerNormParams& norm,
                                    const DropoutSite& dropout,
                                    const at::Tensor& row_numbers,
                                    Normalised* normalised);

  ResidualLayerNormGradients (*residual_layer_norm_backward)(const at::Tensor& grad,
                                                             const Normalised& normalised,
                                                             const at::Tensor& norm_weight,
                                                             const DropoutSite& dropout,
                                                             const at::Tensor& row_numbers,
                                                             at::ScalarType product_dtype,
                                                             at::ScalarType residual_dtype);

  /// dropout(layer_norm(word[ids] + position[positions] + token_type[token_types])): [T, H], dtype
  /// of `word`. Types are 0 where `token_types` is undefined.
  at::Tensor (*embedding_layer_norm)(const at::Tensor& word,
                                     const at::Tensor& position,
                                     const at::Tensor& token_type,
                                     const at::Tensor& ids,
                                     const at::Tensor& positions,
                                     const at::Tensor& token_types,
                                     const LayerNormParams& norm,
                                     const DropoutSite& dropout,
                                     Normalised* normalised);

  EmbeddingGradients (*embedding_layer_norm_backward)(const at::Tensor& grad,
                                                      const Normalised& normalised,
                                                      const at::Tensor& norm_weight,
                                                      const DropoutSite& dropout);

  /// table[indices[t]] += rows[t] for every t in turn. `rows` [T, H]
  /// float32; `table` [*, H] float32.
  void (*add_rows_at)(const at::Tensor& indices, const at::Tensor& rows, at::Tensor& table);

  /// to[numbers[b]] += rows[b] for every b; no number is there twice. `to` [T, H], `rows` [B, H].
  void (*add_to_rows)(const at::Tensor& to, const at::Tensor& numbers, const at::Tensor& rows);

  /// activation(product + bias): [T, F], dtype of `product`.
  at::Tensor (*bias_activation)(const at::Tensor& product, const at::Tensor& bias, Activation activation);

  /// `grad`, of the dtype of `product`, is overwritten and becomes its gradient.
  ActivationGradients (*bias_activation_backward)(const at::Tensor& grad,
                                                  const at::Tensor& product,
                                                  const at::Tensor& bias,
                                                  Activation activation);

  // Of blocks that begin with their norm. Biases, of norms too, are undefined if there are none; row numbers are
  // rows of the dropout mask, undefined for 0 ... T - 1.

  /// @param normalised  nullptr if backward will not be called
  /// @return [T, H], of `dtype`
  at::Tensor (*layer_norm)(const at::Tensor& x,
                           const LayerNormParams& norm,
                           at::ScalarType dtype,
                           Normalised* normalised);

  /// @param residual  [T, H], added to the gradient of x; undefined for none
  /// @param x_dtype  of the gradient of x
  LayerNormGradients (*layer_norm_backward)(const at::Tensor& grad,
                                            const Normalised& normalised,
                                            const at::Tensor& norm_weight,
                                            const at::Tensor& residual,
                                            at::ScalarType x_dtype);

  /// dropout(product + bias) + residual: [T, H], of the wider dtype of the two.
  at::Tensor (*residual_dropout)(const at::Tensor& product,
                                 const at::Tensor& bias,
                                 const at::Tensor& residual,
                                 const DropoutSite& dropout,
                                 const at::Tensor& row_numbers);

  /// The gradient of `product` may be `grad` itself.
  ResidualDropoutGradients (*residual_dropout_backward)(const at::Tensor& grad,
                                                        bool has_bias,
                                                        const DropoutSite& dropout,
                                                        const at::Tensor& row_numbers,
                                                        at::ScalarType product_dtype);

  /// dropout(activation(a) * b) for the left half a and the right half b of product + bias.
  /// @param product  [T, 2 F]
  /// @return [T, F], dtype of `product`
  at::Tensor (*gated_activation)(const at::Tensor& product,
                                 const at::Tensor& bias,
                                 Activation activation,
                                 const DropoutSite& dropout,
                                 const at::Tensor& row_numbers);

  /// `grad` [T, F], of the dtype of `product`, is overwritten and becomes the output, computed again.
  /// Its `bias` is [2 F], undefined if there is none.
  ActivationGradients (*gated_activation_backward)(const at::Tensor& grad,
                                                   const at::Tensor& product,
                                                   const at::Tensor& bias,
                                                   Activation activation,
                                                   const DropoutSite& dropout,
                                                   const at::Tensor& row_numbers);

  /// Whether the device has packed attention of `dtype` for heads of `head_size` columns.
  /// @param has_extra_terms  whether there are relative positions or a soft cap
  bool (*takes_heads)(const at::Device& device, at::ScalarType dtype, int64_t head_size, bool has_extra_terms);

  /// @param log_sum_exp  set to float32, a row as `query` and a column a head, which backward needs; nullptr if it
  ///   will not be called
  /// @return sizes and dtype of `query`. Rows of padding and filler are zero.
  at::Tensor (*packed_attention)(const AttentionArguments& attention, at::Tensor* log_sum_exp);

  /// @param output, log_sum_exp  what forward gave
  AttentionGradients (*packed_attention_backward)(const AttentionArguments& attention,
                                                  const at::Tensor& output,
                                                  const at::Tensor& log_sum_exp,
                                                  const at::Tensor& grad);

  /// nullptr if a device computes keys and values for it.
  /// @param log_sum_exp  set to float32 [B, num_heads], which backward needs;
  ///   nullptr if it will not be called
  WeightedRows (*first_token_attention)(const FirstTokenAttention& attention, at::Tensor* log_sum_exp) = nullptr;

  FirstTokenGradients (*first_token_attention_backward)(const FirstTokenAttention& attention,
                                                        const at::Tensor& log_sum_exp,
                                                        const WeightedRows& grad,
                                                        at::ScalarType rows_dtype) = nullptr;
};

/// Its functions that every device has.
#define MEZZO_FOR_BLOCK_OPS(what)                                                                                      \
  what(dropout) what(residual_layer_norm) what(residual_layer_norm_backward) what(embedding_layer_norm)                \
      what(embedding_layer_norm_backward) what(add_rows_at) what(add_to_rows) what(bias_activation)                    \
          what(bias_activation_backward) what(layer_norm) what(layer_norm_backward) what(residual_dropout)             \
              what(residual_dropout_backward) what(gated_activation) what(gated_activation_backward) what(takes_heads) \
                  what(packed_attention) what(packed_attention_backward)

/// Those for a device; nullptr if the fused blocks cannot run there.
const BlockOps* block_ops(c10::Device device);

/// Gives a kind of device its own, which live as long as the process; nullptr takes them back.
void set_block_ops(c10::DeviceType device_type, const BlockOps* ops);

}  // namespace mezzo::encoder
