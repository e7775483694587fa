// The model families that mezzo runs. A new one: its functions here, and a line of the
// table in model_families.cpp.
#pragma once

#include <memory>
#include <string_view>

#include "mezzo/text/models/model_for_task.h"
#include "text/models/config_fields.h"

namespace mezzo::text {

/// How the models of one `model_type` are made.
struct ModelFamily {
  std::string_view model_type;
  std::unique_ptr<ModelConfig> (*read_config)(const ConfigFields& fields);
  /// @param config  as read_config makes it.
  std::shared_ptr<ModelForTask> (*make_model)(const ModelConfig& config, const Head& head);
};

/// As ModelConfig::from_file().
std::unique_ptr<ModelConfig> read_config(const ConfigFields& fields);

ModelFamily bert_family();
ModelFamily camembert_family();
ModelFamily deberta_v2_family();
ModelFamily distilbert_family();
ModelFamily electra_family();
ModelFamily modernbert_family();
ModelFamily roberta_family();
ModelFamily xlm_roberta_family();
std::unique_ptr<ModelConfig> read_modernbert_config(const ConfigFields& fields);

}  // namespace mezzo::text
