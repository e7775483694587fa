#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "encoder/activation.h"
#include "encoder/dropout_site.h"
#include "encoder/packed_attention.h"

/// The parts of a transformer layer on packed rows. Each is an operator of LibTorch's dispatcher, mezzo::NAME. On any
/// device it is a composition of ATen operations (encoder/reference), which op policies and FiniteTracer see op by op.
/// If a kind of device has BlockOps, a block is two or three nodes of the graph with backward written by hand
/// (encoder/fused). All follow autocast as the compositions do. T rows, H hidden units, F feed-forward units, B
/// sequences.
namespace mezzo::encoder {

/// Scale and shift of a layer normalisation: `weight` and `bias` [H]; the bias undefined for none, if norm_first.
struct LayerNormParams {
  const at::Tensor& weight;
  const at::Tensor& bias;
  double eps;
};

/// The trained addition to a frozen linear layer (LoRA): scale · b (a dropout(x)); `a` [rank, in], `b` [out, rank]. Row
/// t of x is dropped as row `row_numbers[t]`, if the block has them.
struct LoraParams {
  at::Tensor a, b;
  double scale = 1;
  DropoutSite dropout;
};

/// A linear layer: `weight` [out, in], `bias` [out], undefined for none. All layers of a block that begins with its
/// norm may lack a bias. Of feed-forward blocks, only blocks with a gated activation may.
struct LinearParams {
  at::Tensor weight;
  const at::Tensor& bias;
  /// `weight` as autocast would cast it, kept up to date by the caller, so that autocast need not. Or
  /// int8_weight(weight), with which fused blocks compute if gradients are off. Undefined if there is none. A block
  /// uses half copies if all its layers have one.
  at::Tensor half_copy = {};
  /// Added to the layer's result. A block with such a layer is computed by its specification. Only attention and
  /// the products of frozen weights are fused there.
  std::optional<LoraParams> lora = {};
};

/// dropout(layer_norm(word[ids] + position[positions] + token_type[token_types])).
/// @param word, position, token_type  tables [*, H]
/// @param ids, positions  [T] int64
/// @param token_types  [T] int64; undefined where all are 0
/// @return [T, H]
/// @throws c10::IndexError  on a CPU, for an id that its table has no row for
at::Tensor embedding_layer_norm(const at::Tensor& word,
                                const at::Tensor& position,
                                const at::Tensor& token_type,
                                const at::Tensor& ids,
                                const at::Tensor& positions,
                                const at::Tensor& token_types,
                                const LayerNormParams& norm,
                                const DropoutSite& dropout);

/// The half of a layer that attends.
struct AttentionParams {
  /// Of query, key and value: three layers, or one with the rows of all three, [3 H, H].
  std::vector<LinearParams> query_key_value;
  LinearParams output;
  LayerNormParams norm;  ///< its weight undefined: none, if it comes first
  AttentionDescription attention;
  DropoutSite output_dropout;  ///< of the seed and step of `attention.dropout`
  bool norm_first = false;     ///< whether the block begins with its norm, or ends with it
};

/// layer_norm(x + dropout(linear(packed_attention(linear(x), linear(x), linear(x))))), or the same with layer_norm(x)
/// as the input of the layers and no norm at the end. Fused, once differentiable. On CPUs, plain attention of
/// only_first_queries without norm_first computes no keys and values. Their linear functions are applied to the queries
/// and the outputs instead. The gradient of the keys' bias, which changes no output, is exactly zero then.
/// @param x  [T, H]
/// @return [T, H]; with only_first_queries [B, H]
at::Tensor attention_block(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout);

/// Whether the attention blocks take layouts that the device alone knows (SequenceLayout::is_known), as fused blocks
/// on accelerators do.
/// @param dtype  of the products
/// @param has_relative  whether there are relative positions
bool can_attend_unknown(const at::Device& device, at::ScalarType dtype, int64_t head_size, bool has_relative);

/// The half of a layer that works on each row alone.
struct FeedForwardParams {
  LinearParams intermediate;  ///< [F, H]; gated [2 F, H]: rows of the activation's input, then of its gate
  LinearParams output;        ///< [H, F]
  Activation activation;
  LayerNormParams norm;
  DropoutSite dropout;             ///< of the output
  bool norm_first = false;         ///< whether the block begins with its norm, or ends with it
  bool is_gated = false;           ///< whether the activation is multiplied by a gate
  DropoutSite inner_dropout = {};  ///< of gated activations; of the seed and step of `dropout`
};

/// layer_norm(x + dropout(linear(inner))), or x + dropout(linear(inner)) with norm_first. `inner` is
/// activation(linear(x)), or dropout(activation(a) * b) for the halves a and b of linear(x); with norm_first of
/// layer_norm(x). Fused, once differentiable; keeps the activation's input, not the result.
/// @param x  [T, H]
/// @param row_numbers  [T] int64: which rows of the batch these are, for dropout; undefined if they are all
at::Tensor feed_forward_block(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers);

/// layer_norm(dropout(x) + residual). `x`, `residual` [T, H]; returns [T, H]. Row t is
/// dropped as row `row_numbers[t]` of a tensor would be; `row_numbers` [T] int64, or
/// undefined for 0 ... T - 1.
at::Tensor residual_layer_norm(const at::Tensor& x,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& dropout,
                               const at::Tensor& row_numbers = {});

/// The specification of each, in ATen operations: differentiable to any order.
namespace reference {
at::Tensor embedding_layer_norm(const at::Tensor& word,
                                const at::Tensor& position,
                                const at::Tensor& token_type,
                                const at::Tensor& ids,
                                const at::Tensor& positions,
                                const at::Tensor& token_types,
                                const LayerNormParams& norm,
                                const DropoutSite& dropout);
at::Tensor attention_block(const at::Tensor& x, const AttentionParams& params, const SequenceLayoutPtr& layout);
at::Tensor feed_forward_block(const at::Tensor& x, const FeedForwardParams& params, const at::Tensor& row_numbers);
at::Tensor residual_layer_norm(const at::Tensor& x,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& dropout,
                               const at::Tensor& row_numbers);
}  // namespace reference

}  // namespace mezzo::encoder
