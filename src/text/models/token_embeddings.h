#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "mezzo/text/data/packed_batch.h"
#include "text/models/graph_parts.h"
#include "text/models/modules.h"

namespace mezzo::text {

struct TokenEmbeddingsOptions {
  int64_t vocab_size = 0;
  int64_t size = 0;             ///< of a row
  int64_t projected_size = 0;   ///< of a row behind a linear layer, `embed_proj`, before the norm; 0: there is none
  int64_t num_positions = 0;    ///< 0: the family has none, or only relative ones
  int64_t num_token_types = 0;  ///< 0: the family has none
  int64_t pad_token_id = 0;
  /// As RoBERTa counts: a pad token has position `pad_token_id`, and other tokens count up from pad_token_id + 1. So
  /// the table has pad_token_id + 1 positions that no text needs.
  bool positions_skip_padding = false;
  double norm_eps = 0;
  double dropout = 0;
};

/// dropout(layer_norm(word + position + token type)), or of a projection of that sum, under BERT's names.
class TokenEmbeddings : public torch::nn::Module {
 public:
  explicit TokenEmbeddings(const TokenEmbeddingsOptions& options);
  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random) const;  ///< [T, size or projected_size]
  onnx::Value add_to(const GraphTexts& texts) const;                              ///< [B, S, size or projected_size]

 private:
  at::Tensor positions_of(const PackedBatch& batch) const;
  onnx::Value positions_in(const GraphTexts& texts) const;
  at::Tensor types_of(const PackedBatch& batch) const;
  at::Tensor sum(const PackedBatch& batch) const;

  TokenEmbeddingsOptions options_;
  std::shared_ptr<Embedding> word_, position_, token_type_;
  std::shared_ptr<Dense> projection_;
  std::shared_ptr<LayerNorm> norm_;
};

}  // namespace mezzo::text
