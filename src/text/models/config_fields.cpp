#include "text/models/config_fields.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "text/io/json.h"
#include "text/models/known_config_fields.h"
#include "text/models/problem_types.h"

namespace mezzo::text {
namespace {

constexpr int64_t kMaxLayers = 1024;  // some ten times the layers of the deepest encoders; more would take long to make

}  // namespace

ConfigFields::ConfigFields(const std::filesystem::path& file) : file_(file.string()), object_(read_json_object(file)) {}

ConfigFields::ConfigFields(std::string_view text, std::string name)
    : file_(std::move(name)), object_(parse_json(text, file_ + ": ")) {}

void ConfigFields::read(const char* name, int64_t& value, int64_t minimum, int64_t maximum) const {
  if (const auto* field = json(name)) {
    TORCH_CHECK_VALUE(field->is_number_integer() && *field >= minimum && *field <= maximum, at(name), "is ",
                      field->dump(), ", expected an integer from ", minimum, " to ", maximum);
    value = field->get<int64_t>();
  }
}

void ConfigFields::read_number(const char* name, double& value, double below) const {
  if (const auto* field = json(name)) {
    TORCH_CHECK_VALUE(field->is_number() && *field >= 0.0 && *field < below, at(name), "is ", field->dump(),
                      ", expected a number from 0 to below ", below);
    value = field->get<double>();
  }
}

void ConfigFields::read_one_of(const char* name, std::string& value, const std::vector<std::string_view>& known) const {
  if (const auto* field = json(name)) {
    const bool is_known =
        field->is_string() && std::find(known.begin(), known.end(), field->get<std::string>()) != known.end();
    TORCH_CHECK_VALUE(is_known, at(name), "is ", field->dump(),
                      ", mezzo supports: ", fmt::format("{}", fmt::join(known, ", ")));
    value = field->get<std::string>();
  }
}

void ConfigFields::read_flag(const char* name, bool& value) const {
  if (const auto* field = json(name)) {
    TORCH_CHECK_VALUE(field->is_boolean(), at(name), "is ", field->dump(), ", expected true or false");
    value = field->get<bool>();
  }
}

void ConfigFields::expect(const char* name, const nlohmann::json& value) const {
  if (const auto* field = json(name)) {
    TORCH_CHECK_VALUE(*field == value, at(name), "is ", field->dump(), ", mezzo supports: ", value.dump());
  }
}

void ConfigFields::check_known(std::string_view model_type) const {
  check_known_fields(object_, file_, known_config_fields(), model_type);
}

void ConfigFields::read_common(ModelConfig& config, const SizeNames& names) const {
  read_one_of("problem_type", config.problem_type, problem_type_names(/*of_config=*/true));
  read("vocab_size", config.vocab_size, 1);
  read(names.hidden_size, config.hidden_size, 1);
  read(names.num_hidden_layers, config.num_hidden_layers, 1, kMaxLayers);
  read(names.num_attention_heads, config.num_attention_heads, 1);
  read(names.intermediate_size, config.intermediate_size, 1);
  read("max_position_embeddings", config.max_position_embeddings, 2, kMaxPositions);
  read("pad_token_id", config.pad_token_id, 0);
  read_number("initializer_range", config.initializer_range, 10);
  for (const auto& [name, value] : object_.items()) {
    if (name.ends_with("_token_id") && name != "pad_token_id") {
      config.other_token_ids[name] = value.dump();
    }
  }
  config.label_names = read_label_names();
  if (json("problem_type") == nullptr && config.label_names.size() == 1) config.problem_type = "regression";
  if (json("window_pooling") != nullptr) {
    read_one_of("window_pooling", config.window_pooling, {"mean", "max"});
    read("window_stride", config.window_stride, 0);
  }
  if (json("reads_pairs") != nullptr) read_flag("reads_pairs", config.reads_pairs.emplace());
  TORCH_CHECK_VALUE(config.hidden_size % config.num_attention_heads == 0, at(names.hidden_size), "is ",
                    config.hidden_size, ", which ", config.num_attention_heads, " attention heads cannot divide");
  TORCH_CHECK_VALUE(config.pad_token_id < config.vocab_size, at("pad_token_id"), "is ", config.pad_token_id,
                    ", outside the vocabulary of ", config.vocab_size);
}

std::string ConfigFields::first_architecture() const {
  const auto* names = json("architectures");
  return names != nullptr && names->is_array() && !names->empty() && names->front().is_string()
             ? names->front().get<std::string>()
             : "";
}

std::string ConfigFields::at(const char* name) const { return fmt::format("{}: {} ", file_, name); }

const nlohmann::json* ConfigFields::json(const char* name) const {
  const auto field = object_.find(name);
  return field == object_.end() || field->is_null() ? nullptr : &*field;
}

bool ConfigFields::is_null(const char* name) const {
  const auto field = object_.find(name);
  return field != object_.end() && field->is_null();
}

std::vector<std::string> ConfigFields::read_label_names() const {
  const auto* id2label = json("id2label");
  if (id2label == nullptr) {
    int64_t num_labels = 2;  // transformers leaves its default out of the file
    read("num_labels", num_labels, 1, kMaxUnnamedLabels);
    std::vector<std::string> names;
    for (int64_t id = 0; id < num_labels; ++id) {
      names.push_back(fmt::format("LABEL_{}", id));
    }
    return names;
  }
  TORCH_CHECK_VALUE(id2label->is_object(), at("id2label"),
                    R"(is not an object of ids and names, as {"0": "negative", "1": "positive"})");
  const auto* num_labels = json("num_labels");
  TORCH_CHECK_VALUE(num_labels == nullptr || *num_labels == id2label->size(), at("num_labels"), "is ",
                    num_labels->dump(), ", but id2label has ", id2label->size());
  std::vector<std::string> names(id2label->size());
  std::vector<bool> seen(names.size(), false);
  for (const auto& [key, name] : id2label->items()) {
    const bool is_id = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    const size_t id = is_id ? std::stoul(key) : names.size();
    TORCH_CHECK_VALUE(id < names.size() && !seen[id] && name.is_string(), at("id2label"), "has the entry ",
                      nlohmann::json(key).dump(), ": ", name.dump(), "; expected ids 0 to ", names.size() - 1,
                      ", each with a string");
    names[id] = name.get<std::string>();
    seen[id] = true;
  }
  return names;
}

std::string architecture(std::string_view family, std::string_view problem_type) {
  const auto type = std::ranges::find(kProblemTypes, problem_type, &ProblemType::name);
  TORCH_CHECK_VALUE(type != kProblemTypes.end(), "problem_type is \"", problem_type,
                    "\", mezzo supports: ", fmt::format("{}", fmt::join(problem_type_names(), ", ")));
  return fmt::format("{}{}", family, type->architecture);
}

nlohmann::ordered_json problem_type_field(std::string_view problem_type) {
  const auto type = std::ranges::find(kProblemTypes, problem_type, &ProblemType::name);
  return type != kProblemTypes.end() && type->is_in_config ? nlohmann::ordered_json(problem_type) : nullptr;
}

void add_common_fields(nlohmann::ordered_json& json, const ModelConfig& config) {
  for (const auto& [name, value] : config.other_token_ids) {
    json[name] = nlohmann::ordered_json::parse(value);
  }
  const auto& names = config.label_names;
  if (names.empty()) {
    return;
  }
  // Appended without a look at the members that are there, which an ordered object takes for
  // each: ids and names differ.
  nlohmann::ordered_json::object_t id2label, label2id;
  for (size_t id = 0; id < names.size(); ++id) {
    id2label.emplace_back(std::to_string(id), names[id]);
    label2id.emplace_back(names[id], id);
  }
  if (!config.window_pooling.empty()) {
    json["window_pooling"] = config.window_pooling;
    json["window_stride"] = config.window_stride;
  }
  if (config.reads_pairs) json["reads_pairs"] = *config.reads_pairs;
  json["id2label"] = std::move(id2label);
  json["label2id"] = std::move(label2id);
}

}  // namespace mezzo::text
