#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "mezzo/text/models/encoder.h"
#include "text/models/post_norm_layer.h"
#include "text/models/relative_embeddings.h"
#include "text/models/token_embeddings.h"

namespace mezzo::text {

struct PostNormEncoderOptions {
  std::string_view name;         ///< of the encoder in the model: "bert"
  std::string_view layers_path;  ///< of the layers in the encoder: "encoder.layer"
  TokenEmbeddingsOptions embeddings;
  PostNormLayerOptions layer;
  int64_t num_layers = 0;
  std::string_view relative_path = {};  ///< path of relative embeddings in the encoder: "encoder"
  RelativeEmbeddingsOptions relative = {};
  /// tanh(linear(row)) of each text's first row, unless the model is for tokens.
  bool has_pooler = false;
};

/// Embeddings and post-norm layers, as in BERT and its relatives. A linear layer between them, `embeddings_project`, is
/// there if the embeddings and the layers differ in width.
class PostNormEncoder : public Encoder {
 public:
  explicit PostNormEncoder(const PostNormEncoderOptions& options);

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random, RowsPer rows) override;
  std::string add_to(const GraphTexts& texts, RowsPer rows) const override;
  bool takes_unknown_lengths(const at::Device& device, at::ScalarType dtype, int64_t max_seqlen) const override;
  void set_gradient_checkpointing(bool on) override { layers_->set_gradient_checkpointing(on); }
  int64_t layer_of(std::string_view parameter) const override;
  RowBytes row_bytes(Precision precision, int64_t longest) const override;

 private:
  PostNormEncoderOptions options_;
  std::shared_ptr<TokenEmbeddings> embeddings_;
  std::shared_ptr<Dense> embeddings_project_, pooler_;
  std::optional<RelativeEmbeddings> relative_;
  std::shared_ptr<PostNormLayers> layers_;
};

}  // namespace mezzo::text
