#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "mezzo/text/models/model_for_task.h"
#include "text/models/post_norm_encoder.h"

namespace mezzo::text {

/// What makes outputs of an encoder's rows: outputs(dropout(rows)), or with a dense layer before,
/// outputs(dropout(activation(dense(dropout(rows))))).
struct ClassifierOptions {
  std::string_view outputs = "classifier";             ///< name of the last linear layer
  std::string_view dense = {};                         ///< of the one before it; empty: there is none
  std::optional<encoder::Activation> activation = {};  ///< of `dense`; nullopt: tanh
  double input_dropout = 0;                            ///< of what `dense` reads
  double dropout = 0;
};

/// A model of BERT's line: its encoder and a classifier, of texts or tokens.
class PostNormModel : public ModelForTask {
 public:
  PostNormModel(std::shared_ptr<const ModelConfig> config,
                const PostNormEncoderOptions& encoder,
                const ClassifierOptions& classifier,
                const Head& head);

  at::Tensor forward(const PackedBatch& batch, const DropoutSeed& random) override;
  std::string add_to(const GraphTexts& texts) const override;
  bool reads_token_types() const override { return reads_token_types_; }

  const ModelConfig& config() const override { return *config_; }
  std::string_view base_model_prefix() const override { return name_; }
  Encoder& encoder() override { return *encoder_; }
  const Encoder& encoder() const override { return *encoder_; }

 protected:
  /// If a table of positions has a row for padding, zero it as well.
  void init_parameter(const std::string& name, at::Tensor& parameter, const at::Generator& generator) override;

 private:
  std::shared_ptr<const ModelConfig> config_;
  std::string_view name_;
  ClassifierOptions classifier_;
  bool has_padding_position_, reads_token_types_;
  std::shared_ptr<PostNormEncoder> encoder_;
  std::shared_ptr<Dense> dense_, outputs_;
};

}  // namespace mezzo::text
