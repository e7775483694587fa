#include "mezzo/text/models/model_config.h"

#include <c10/util/Exception.h>

#include <set>

namespace mezzo::text {

void ModelConfig::check_labels(const std::filesystem::path& config_json) const {
  TORCH_CHECK_VALUE(problem_type != "single_label_classification" || label_names.size() >= 2, config_json.string(),
                    ": id2label names fewer than two labels, and a classifier tells two apart");
  TORCH_CHECK_VALUE(problem_type != "regression" || label_names.size() == 1, config_json.string(), ": id2label has ",
                    label_names.size(), " names; a model for regression has one output");
  std::set<std::string_view> seen;
  for (const std::string& name : label_names) {
    TORCH_CHECK_VALUE(!name.empty(), config_json.string(), ": id2label has an empty name");
    TORCH_CHECK_VALUE(seen.insert(name).second, config_json.string(), ": id2label names two labels '", name,
                      "'; give each a name of its own");
  }
}

}  // namespace mezzo::text
