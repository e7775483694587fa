#include "text/models/post_norm_layer.h"

#include "kernels/dropout.h"
#include "mezzo/amp/module_scope.h"
#include "text/models/checkpointed.h"
#include "text/models/dropout_sites.h"

// T rows (tokens of all texts), B texts, H hidden size.

namespace mezzo::text {

PostNormLayer::PostNormLayer(const PostNormLayerOptions& options) : options_(options) {
  const auto& names = options.names;
  const int64_t hidden = options.hidden_size, inner = options.intermediate_size;
  const auto dense = [&](std::string_view name, int64_t in, int64_t out) {
    return register_at(*this, name, std::make_shared<Dense>(in, out));
  };
  const auto norm = [&](std::string_view name) {
    return register_at(*this, name, std::make_shared<LayerNorm>(hidden, options.norm_eps));
  };
  query_ = dense(names.query, hidden, hidden);
  key_ = dense(names.key, hidden, hidden);
  value_ = dense(names.value, hidden, hidden);
  const auto of_positions = [&](bool has_term, const std::shared_ptr<Dense>& shared, std::string_view name) {
    return !has_term ? nullptr : options.relative.shares_projections ? shared : dense(name, hidden, hidden);
  };
  position_key_ = of_positions(options.relative.has_key_term, key_, names.position_key);
  position_query_ = of_positions(options.relative.has_query_term, query_, names.position_query);
  attention_output_ = dense(names.attention_output, hidden, hidden);
  attention_norm_ = norm(names.attention_norm);
  intermediate_ = dense(names.intermediate, hidden, inner);
  output_ = dense(names.output, inner, hidden);
  output_norm_ = norm(names.output_norm);
}

at::Tensor PostNormLayer::forward(const at::Tensor& x,
                                  const encoder::SequenceLayoutPtr& layout,
                                  const DropoutSeed& random,
                                  int64_t layer,
                                  bool only_first_rows,
                                  const RelativeRows& relative) const {
  const auto dropout = [&](double p, LayerSite where) {
    return dropout_site(is_training() ? p : 0, random, layer_site(layer, where));
  };
  const encoder::AttentionParams attention{
      .query = query_->params(),
      .key = key_->params(),
      .value = value_->params(),
      .output = attention_output_->params(),
      .norm = attention_norm_->params(),
      .num_heads = options_.num_heads,
      .weights_dropout = dropout(options_.attention_weights_dropout, LayerSite::kAttentionWeights),
      .output_dropout = dropout(options_.attention_output_dropout, LayerSite::kAttentionOutput),
      .relative = positions_of(relative)};
  const auto attended = only_first_rows ? encoder::first_token_attention_block(x, attention, layout)
                                        : encoder::attention_block(x, attention, layout);
  return encoder::feed_forward_block(attended,
                                     {.intermediate = intermediate_->params(),
                                      .output = output_->params(),
                                      .activation = options_.activation,
                                      .norm = output_norm_->params(),
                                      .dropout = dropout(options_.output_dropout, LayerSite::kOutput)},
                                     only_first_rows ? layout->first_rows() : at::Tensor());
}

encoder::RelativePositions PostNormLayer::positions_of(const RelativeRows& relative) const {
  if (!relative.embeddings.defined()) {
    return {};
  }
  const ModuleScope attention("attention"), self("self");
  const auto of = [&](const std::shared_ptr<Dense>& projection) {
    return projection ? projection->forward(relative.embeddings) : at::Tensor();
  };
  return {of(position_key_), of(position_query_), relative.rows};
}

std::vector<at::Tensor> PostNormLayer::weights_of_one_input() const {
  return {query_->weight, key_->weight, value_->weight};
}

PostNormLayers::PostNormLayers(int64_t count, const PostNormLayerOptions& options)
    : relative_dropout_(options.relative.dropout) {
  for (int64_t i = 0; i < count; ++i) {
    layers_.push_back(register_module(std::to_string(i), std::make_shared<PostNormLayer>(options)));
  }
}

at::Tensor PostNormLayers::forward(at::Tensor x,
                                   const encoder::SequenceLayoutPtr& layout,
                                   const DropoutSeed& random,
                                   RowsPer rows,
                                   std::string_view path,
                                   const RelativeRows& relative) const {
  std::vector<at::Tensor> shared;  // by all layers
  if (relative.embeddings.defined()) {
    shared.push_back(relative.embeddings);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool only_first_rows = rows == RowsPer::kText && i + 1 == layers_.size();
    const auto number = static_cast<int64_t>(i);
    const auto site = dropout_site(is_training() ? relative_dropout_ : 0, random,
                                   relative_site(static_cast<int64_t>(layers_.size()), number));
    const auto run = [=, layer = layers_[i], distances = relative.rows](const std::vector<at::Tensor>& inputs) {
      const ModuleScope scope(path, number);
      RelativeRows dropped;
      if (inputs.size() > 1) {
        // A tensor of the layer's own, so that its gradients are summed before other layers' join them, as
        // they are where the layer is computed again.
        dropped = {kernels::dropout(inputs[1].alias(), site), distances};
      }
      return layer->forward(inputs[0], layout, random, number, only_first_rows, dropped);
    };
    std::vector<at::Tensor> inputs{x};
    inputs.insert(inputs.end(), shared.begin(), shared.end());
    x = checkpointing_ && is_training() ? checkpointed(run, inputs, layers_[i]->parameters()) : run(inputs);
  }
  return x;
}

}  // namespace mezzo::text
