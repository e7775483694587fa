#include "text/models/model_families.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "text/models/problem_types.h"

namespace mezzo::text {
namespace {

const std::vector<ModelFamily>& families() {
  static const std::vector<ModelFamily> kFamilies = {
      bert_family(),    camembert_family(),  deberta_v2_family(), distilbert_family(),
      electra_family(), modernbert_family(), roberta_family(),    xlm_roberta_family(),
  };
  return kFamilies;
}

const ModelFamily& family_of(std::string_view model_type) {
  const auto found = std::ranges::find(families(), model_type, &ModelFamily::model_type);
  TORCH_INTERNAL_ASSERT(found != families().end(), "a config of no family");
  return *found;
}

}  // namespace

std::unique_ptr<ModelConfig> ModelConfig::from_file(const std::filesystem::path& config_json) {
  return read_config(ConfigFields(config_json));
}

std::unique_ptr<ModelConfig> read_config(const ConfigFields& fields) {
  std::string model_type = "bert";
  std::vector<std::string_view> known;
  for (const ModelFamily& family : families()) {
    known.push_back(family.model_type);
  }
  // Google's configs of BERT name no type.
  TORCH_CHECK_VALUE(fields.json("model_type") != nullptr || fields.json("hidden_size") != nullptr, fields.file(),
                    ": has no model_type. Add the model's, one of ", fmt::format("{}", fmt::join(known, ", ")), ".");
  fields.read_one_of("model_type", model_type, known);
  fields.check_known(model_type);
  auto config = family_of(model_type).read_config(fields);
  config->first_architecture = fields.first_architecture();
  for (const ProblemType& type : kProblemTypes) {
    if (!type.is_in_config && config->first_architecture.ends_with(type.architecture)) config->problem_type = type.name;
  }
  return config;
}

std::shared_ptr<ModelForTask> make_model(const ModelConfig& config, const Head& head) {
  const auto num_labels = static_cast<int64_t>(config.label_names.size());
  TORCH_CHECK_VALUE(num_labels == 0 || num_labels == head.num_outputs, "make_model: the config names ", num_labels,
                    " labels, but the head has ", head.num_outputs,
                    " outputs; give label_names a name for each output, or none at all");
  return family_of(config.model_type()).make_model(config, head);
}

}  // namespace mezzo::text
