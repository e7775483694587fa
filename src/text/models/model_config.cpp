#include "mezzo/text/models/model_config.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "mezzo/text/io/atomic_file.h"

namespace mezzo::text {

std::map<std::string, std::string> ModelConfig::values() const {
  // Initial weights have been drawn when a run goes on. Labels and the task have separate fields in its identity.
  constexpr std::string_view kOthers[] = {
      "architectures",     "dtype",        "id2label",     "initializer_cutoff_factor",
      "initializer_range", "label2id",     "problem_type", "sinusoidal_pos_embds",
      "window_pooling",    "window_stride"};
  std::map<std::string, std::string> values;
  const auto fields = nlohmann::json::parse(json());
  for (const auto& [name, value] : fields.items()) {
    if (std::ranges::find(kOthers, name) == std::end(kOthers) && !other_token_ids.contains(name)) {
      values[name] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return values;
}

void ModelConfig::save(const std::filesystem::path& config_json) const {
  write_file_atomically(config_json, json() + "\n");
}

void ModelConfig::check_labels(const std::filesystem::path& config_json) const {
  TORCH_CHECK_VALUE(problem_type != "single_label_classification" || label_names.size() >= 2, config_json.string(),
                    ": id2label has fewer than two labels; a classifier needs two");
  TORCH_CHECK_VALUE(problem_type != "regression" || label_names.size() == 1, config_json.string(), ": id2label has ",
                    label_names.size(), " names; a model for regression has one output");
  std::set<std::string_view> seen;
  for (const std::string& name : label_names) {
    TORCH_CHECK_VALUE(!name.empty(), config_json.string(), ": id2label has an empty name");
    TORCH_CHECK_VALUE(seen.insert(name).second, config_json.string(), ": id2label names two labels '", name,
                      "'; give each a different name");
  }
}

}  // namespace mezzo::text
