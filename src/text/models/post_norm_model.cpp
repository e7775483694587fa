#include "text/models/post_norm_model.h"

#include <utility>

#include "encoder/dropout.h"
#include "encoder/reference/parts.h"
#include "mezzo/amp/module_scope.h"
#include "text/models/dropout_sites.h"

// T rows (tokens of all texts), B texts, H hidden size, C labels.

namespace mezzo::text {

PostNormModel::PostNormModel(std::shared_ptr<const ModelConfig> config,
                             const PostNormEncoderOptions& encoder,
                             const ClassifierOptions& classifier,
                             const Head& head)
    : ModelForTask(head),
      config_(std::move(config)),
      name_(encoder.name),
      classifier_(classifier),
      has_padding_position_(encoder.embeddings.positions_skip_padding),
      reads_token_types_(encoder.embeddings.num_token_types > 1),
      encoder_(register_module(std::string(encoder.name), std::make_shared<PostNormEncoder>(encoder))) {
  const int64_t hidden = encoder.layer.hidden_size;
  if (!classifier.dense.empty()) {
    dense_ = register_at(*this, classifier.dense, std::make_shared<Dense>(hidden, hidden));
  }
  outputs_ = register_at(*this, classifier.outputs, std::make_shared<Dense>(hidden, head.num_outputs));
}

at::Tensor PostNormModel::forward(const PackedBatch& batch, const DropoutSeed& random) {
  const auto dropped = [&](const at::Tensor& rows, double p, uint32_t site) {
    return encoder::dropout(rows, dropout_site(is_training() ? p : 0, random, site));
  };
  auto x = encoder_->forward(batch, random, head().rows);  // [B, H] or [T, H]
  if (dense_) {
    const ModuleScope scope(classifier_.dense);
    x = dropped(x, classifier_.input_dropout, site_behind_layers(config_->num_hidden_layers));
    x = dense_->forward(x);
    x = classifier_.activation ? encoder::reference::activate(x, *classifier_.activation) : x.tanh();
  }
  const ModuleScope scope(classifier_.outputs);
  return outputs_->forward(dropped(x, classifier_.dropout, kClassifierSite));  // [B, C] or [T, C]
}

std::string PostNormModel::add_to(const GraphTexts& texts) const {
  onnx::Graph& graph = texts.graph;
  onnx::Value x = encoder_->add_to(texts, head().rows);
  if (dense_) {
    x = graph_linear(graph, *dense_, x);
    x = classifier_.activation ? graph_activation(graph, *classifier_.activation, x) : graph.node("Tanh", {x});
  }
  return graph_linear(graph, *outputs_, x);
}

void PostNormModel::init_parameter(const std::string& name, at::Tensor& parameter, const at::Generator& generator) {
  ModelForTask::init_parameter(name, parameter, generator);
  if (has_padding_position_ && name.ends_with("position_embeddings.weight")) {
    parameter.select(0, config().pad_token_id).zero_();
  }
}

}  // namespace mezzo::text
