#include "mezzo/text/models/bert_config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "mezzo/text/io/atomic_file.h"
#include "text/io/json_file.h"

namespace mezzo::text {
namespace {

using PlainJson = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
constexpr int64_t kMaxSize = int64_t{1} << 24;  // of any dimension; keeps products of two far from overflow

/// Reads fields of one JSON object; every complaint names the file and the field.
class Fields {
 public:
  Fields(const std::filesystem::path& file, const PlainJson& object) : file_(file), object_(object) {}

  void read(const char* name, int64_t& value, int64_t minimum) const {
    if (const PlainJson* field = find(name)) {
      TORCH_CHECK_VALUE(field->is_number_integer() && *field >= minimum && *field <= kMaxSize, at(name), "is ",
                        field->dump(), ", expected an integer from ", minimum, " to ", kMaxSize);
      value = field->get<int64_t>();
    }
  }

  void read_number(const char* name, double& value, double below) const {
    if (const PlainJson* field = find(name)) {
      TORCH_CHECK_VALUE(field->is_number() && *field >= 0.0 && *field < below, at(name), "is ", field->dump(),
                        ", expected a number from 0 to below ", below);
      value = field->get<double>();
    }
  }

  void read_one_of(const char* name, std::string& value, std::initializer_list<std::string_view> known) const {
    if (const PlainJson* field = find(name)) {
      const bool is_known =
          field->is_string() && std::find(known.begin(), known.end(), field->get<std::string>()) != known.end();
      TORCH_CHECK_VALUE(is_known, at(name), "is ", field->dump(),
                        ", mezzo runs: ", fmt::format("{}", fmt::join(known, ", ")));
      value = field->get<std::string>();
    }
  }

  const PlainJson* find(const char* name) const {
    const auto field = object_.find(name);
    return field == object_.end() || field->is_null() ? nullptr : &*field;
  }

  std::string at(const char* name) const { return fmt::format("{}: {} ", file_.string(), name); }

 private:
  const std::filesystem::path& file_;
  const PlainJson& object_;
};

std::vector<std::string> read_label_names(const Fields& fields) {
  const PlainJson* id2label = fields.find("id2label");
  if (id2label == nullptr) {
    return {"LABEL_0", "LABEL_1"};  // transformers leaves its default out of the file
  }
  TORCH_CHECK_VALUE(id2label->is_object(), fields.at("id2label"), "is not an object that maps ids to names");
  std::vector<std::string> names(id2label->size());
  std::vector<bool> seen(names.size(), false);
  for (const auto& [key, name] : id2label->items()) {
    const bool is_id = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    const size_t id = is_id ? std::stoul(key) : names.size();
    TORCH_CHECK_VALUE(id < names.size() && !seen[id] && name.is_string(), fields.at("id2label"), "has the entry ",
                      PlainJson(key).dump(), ": ", name.dump(), "; expected ids 0 to ", names.size() - 1,
                      ", each with a string");
    names[id] = name.get<std::string>();
    seen[id] = true;
  }
  return names;
}

}  // namespace

BertConfig BertConfig::from_file(const std::filesystem::path& config_json) {
  const PlainJson json = read_json_object(config_json);
  const Fields fields(config_json, json);
  std::string model_type = "bert", positions = "absolute";
  fields.read_one_of("model_type", model_type, {"bert"});
  fields.read_one_of("position_embedding_type", positions, {"absolute"});

  BertConfig config;
  fields.read_one_of("problem_type", config.problem_type, {"single_label_classification"});
  fields.read("vocab_size", config.vocab_size, 1);
  fields.read("hidden_size", config.hidden_size, 1);
  fields.read("num_hidden_layers", config.num_hidden_layers, 1);
  fields.read("num_attention_heads", config.num_attention_heads, 1);
  fields.read("intermediate_size", config.intermediate_size, 1);
  fields.read("max_position_embeddings", config.max_position_embeddings, 2);
  fields.read("type_vocab_size", config.type_vocab_size, 1);
  fields.read("pad_token_id", config.pad_token_id, 0);
  fields.read_one_of("hidden_act", config.hidden_act, {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu"});
  fields.read_number("hidden_dropout_prob", config.hidden_dropout_prob, 1);
  fields.read_number("attention_probs_dropout_prob", config.attention_probs_dropout_prob, 1);
  fields.read_number("classifier_dropout", config.classifier_dropout, 1);
  fields.read_number("initializer_range", config.initializer_range, 10);
  fields.read_number("layer_norm_eps", config.layer_norm_eps, 1);
  config.label_names = read_label_names(fields);
  TORCH_CHECK_VALUE(config.hidden_size % config.num_attention_heads == 0, fields.at("hidden_size"), "is ",
                    config.hidden_size, ", which ", config.num_attention_heads, " attention heads do not divide");
  TORCH_CHECK_VALUE(config.pad_token_id < config.vocab_size, fields.at("pad_token_id"), "is ", config.pad_token_id,
                    ", outside the vocabulary of ", config.vocab_size);
  return config;
}

void BertConfig::save(const std::filesystem::path& config_json) const {
  // Appended without a look at the members that are there, which an ordered object takes for each: ids and names
  // differ.
  OrderedJson::object_t id2label, label2id;
  for (size_t id = 0; id < label_names.size(); ++id) {
    id2label.emplace_back(std::to_string(id), label_names[id]);
    label2id.emplace_back(label_names[id], id);
  }
  OrderedJson json = {
      {"architectures", {"BertForSequenceClassification"}},
      {"model_type", "bert"},
      {"vocab_size", vocab_size},
      {"hidden_size", hidden_size},
      {"num_hidden_layers", num_hidden_layers},
      {"num_attention_heads", num_attention_heads},
      {"intermediate_size", intermediate_size},
      {"hidden_act", hidden_act},
      {"hidden_dropout_prob", hidden_dropout_prob},
      {"attention_probs_dropout_prob", attention_probs_dropout_prob},
      {"classifier_dropout", classifier_dropout < 0 ? OrderedJson() : OrderedJson(classifier_dropout)},
      {"max_position_embeddings", max_position_embeddings},
      {"type_vocab_size", type_vocab_size},
      {"initializer_range", initializer_range},
      {"layer_norm_eps", layer_norm_eps},
      {"pad_token_id", pad_token_id},
      {"position_embedding_type", "absolute"},
      {"problem_type", problem_type},
      {"dtype", "float32"},
  };
  if (!label_names.empty()) {
    json["id2label"] = std::move(id2label);
    json["label2id"] = std::move(label2id);
  }
  write_file_atomically(config_json, json.dump(2) + "\n");
}

void BertConfig::check_labels(const std::filesystem::path& config_json) const {
  TORCH_CHECK_VALUE(label_names.size() >= 2, config_json.string(),
                    ": id2label names fewer than two labels, and a classifier tells two apart");
  std::set<std::string_view> seen;
  for (const std::string& name : label_names) {
    TORCH_CHECK_VALUE(!name.empty(), config_json.string(), ": id2label has an empty name");
    TORCH_CHECK_VALUE(seen.insert(name).second, config_json.string(), ": id2label names two labels '", name,
                      "'; give each a name of its own");
  }
}

void BertConfig::set_dropout(double p) {
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "dropout must be in [0, 1), got ", p);
  hidden_dropout_prob = attention_probs_dropout_prob = classifier_dropout = p;
}

}  // namespace mezzo::text
