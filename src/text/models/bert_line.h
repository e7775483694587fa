// What configs of BERT's line share: families whose config.json has BERT's fields.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "mezzo/text/models/bert_config.h"
#include "text/models/config_fields.h"
#include "text/models/post_norm_encoder.h"

namespace mezzo::text {

void read_bert_fields(const ConfigFields& fields, BertConfig& config);

/// @param class_name  what begins the names of transformers' classes: "Bert"
nlohmann::ordered_json bert_fields(const BertConfig& config, std::string_view class_name);

/// The probability of the dropouts in the head.
double classifier_dropout(const BertConfig& config);

/// An encoder with BERT's names and layers.
/// @param name  of the encoder in the model: "bert"
PostNormEncoderOptions bert_encoder(const BertConfig& config, std::string_view name);

}  // namespace mezzo::text
