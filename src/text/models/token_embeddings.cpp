#include "text/models/token_embeddings.h"

#include <ATen/ATen.h>

#include "encoder/blocks.h"
#include "text/models/dropout_sites.h"

// T rows (tokens of all texts).

namespace mezzo::text {

TokenEmbeddings::TokenEmbeddings(const TokenEmbeddingsOptions& options) : options_(options) {
  const auto table = [&](const char* name, int64_t rows) {
    return register_module(name, std::make_shared<Embedding>(rows, options.size));
  };
  word_ = table("word_embeddings", options.vocab_size);
  position_ = table("position_embeddings", options.num_positions);
  if (options.num_token_types > 0) {
    token_type_ = table("token_type_embeddings", options.num_token_types);
  }
  norm_ = register_module("LayerNorm", std::make_shared<LayerNorm>(options.size, options.norm_eps));
}

at::Tensor TokenEmbeddings::forward(const PackedBatch& batch, const DropoutSeed& random) const {
  const auto& word = word_->weight;
  const auto token_type = token_type_ ? token_type_->weight : word.detach().new_zeros({1, options_.size});
  // What tokenizers say of pairs tells nothing where all tokens are of one type.
  const auto token_types = options_.num_token_types > 1 ? batch.token_types : at::Tensor();
  return encoder::embedding_layer_norm(word, position_->weight, token_type, batch.input_ids, positions_of(batch),
                                       token_types, norm_->params(),
                                       dropout_site(is_training() ? options_.dropout : 0, random, kEmbeddingSite));
}

at::Tensor TokenEmbeddings::positions_of(const PackedBatch& batch) const {
  if (!options_.positions_skip_padding) {
    return batch.positions;
  }
  const auto counts = batch.input_ids.ne(options_.pad_token_id).to(at::kLong);  // [T]
  const auto counted = counts.cumsum(0);
  const auto rows = at::arange(counts.size(0), counts.options());
  const auto before_text = (counted - counts).index_select(0, rows - batch.positions);
  return (counted - before_text) * counts + options_.pad_token_id;
}

}  // namespace mezzo::text
