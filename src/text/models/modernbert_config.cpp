#include "mezzo/text/models/modernbert_config.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "text/models/activation_names.h"
#include "text/models/model_families.h"

namespace mezzo::text {
namespace {

constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";

/// Layers of which every n-th is global, from the first on.
std::vector<bool> every_nth_global(int64_t layers, int64_t n) {
  std::vector<bool> is_local(layers);
  for (int64_t i = 0; i < layers; ++i) {
    is_local[i] = i % n != 0;
  }
  return is_local;
}

std::vector<bool> read_layer_types(const ConfigFields& fields, int64_t layers) {
  const auto* types = fields.json("layer_types");
  if (types == nullptr) {
    int64_t every = 3;
    fields.read("global_attn_every_n_layers", every, 1);
    return every_nth_global(layers, every);
  }
  TORCH_CHECK_VALUE(types->is_array() && static_cast<int64_t>(types->size()) == layers, fields.at("layer_types"),
                    "is not a list of ", layers, " types, one for each of num_hidden_layers");
  std::vector<bool> is_local;
  for (const auto& type : *types) {
    TORCH_CHECK_VALUE(type == kFull || type == kSliding, fields.at("layer_types"), "has ", type.dump(),
                      ", mezzo supports: ", kFull, ", ", kSliding);
    is_local.push_back(type == kSliding);
  }
  return is_local;
}

double check_theta(const nlohmann::json& value, const std::string& where) {
  TORCH_CHECK_VALUE(value.is_number() && value > 0.0, where, "is ", value.dump(), ", expected a number above 0");
  return value.get<double>();
}

/// What rope_parameters says of the layers of a type; nullopt if it says nothing.
std::optional<double> read_rope_parameters(const ConfigFields& fields, const char* layer_type) {
  const auto* all = fields.json("rope_parameters");
  if (all == nullptr) {
    return std::nullopt;
  }
  TORCH_CHECK_VALUE(all->is_object() && !all->contains("rope_theta") && !all->contains("rope_type"),
                    fields.at("rope_parameters"), "is ", all->dump(), ", expected an object for each of ", kFull,
                    " and ", kSliding);
  const auto own = all->find(layer_type);
  if (own == all->end() || own->is_null()) {
    return std::nullopt;
  }
  const std::string name = fmt::format("rope_parameters.{}.", layer_type);
  TORCH_CHECK_VALUE(own->is_object(), fields.at(("rope_parameters." + std::string(layer_type)).c_str()), "is ",
                    own->dump(), ", expected an object");
  for (const auto& [key, value] : own->items()) {
    TORCH_CHECK_VALUE(key == "rope_theta" || (key == "rope_type" && value == "default"),
                      fields.at((name + key).c_str()), "is ", value.dump(),
                      ", mezzo supports rope_type \"default\" with a rope_theta");
  }
  const auto given = own->find("rope_theta");
  return given == own->end() ? std::nullopt
                             : std::optional(check_theta(*given, fields.at((name + "rope_theta").c_str())));
}

/// @param older  as older files name it, in which null once meant another theta than a missing one
double read_theta(const ConfigFields& fields, const char* layer_type, const char* older, double usual) {
  if (const auto theta = read_rope_parameters(fields, layer_type)) {
    return *theta;
  }
  TORCH_CHECK_VALUE(!fields.is_null(older), fields.at(older), "is null, expected a number above 0");
  const auto* theta = fields.json(older);
  return theta == nullptr ? usual : check_theta(*theta, fields.at(older));
}

}  // namespace

ModernBertConfig::ModernBertConfig() {
  vocab_size = 50368;
  num_hidden_layers = 22;
  intermediate_size = 1152;
  max_position_embeddings = 8192;
  pad_token_id = 50283;
  is_local = every_nth_global(num_hidden_layers, 3);
}

std::unique_ptr<ModelConfig> read_modernbert_config(const ConfigFields& fields) {
  ModernBertConfig config;
  fields.read_common(config);
  fields.read_one_of("hidden_activation", config.hidden_activation, activation_names());
  fields.read_one_of("classifier_activation", config.classifier_activation, activation_names());
  fields.read_one_of("classifier_pooling", config.classifier_pooling, {"cls", "mean"});
  fields.read_number("embedding_dropout", config.embedding_dropout, 1);
  fields.read_number("attention_dropout", config.attention_dropout, 1);
  fields.read_number("mlp_dropout", config.mlp_dropout, 1);
  fields.read_number("classifier_dropout", config.classifier_dropout, 1);
  fields.read_number("norm_eps", config.norm_eps, 1);
  fields.read_number("initializer_cutoff_factor", config.initializer_cutoff_factor, 100);
  fields.read_flag("norm_bias", config.norm_bias);
  fields.read_flag("attention_bias", config.attention_bias);
  fields.read_flag("mlp_bias", config.mlp_bias);
  fields.read_flag("classifier_bias", config.classifier_bias);
  fields.read("local_attention", config.local_attention, 0);
  if (fields.json("sliding_window") != nullptr) {  // half of it, which transformers takes rather
    int64_t half = 0;
    fields.read("sliding_window", half, 0);
    config.local_attention = 2 * half;
  }
  config.is_local = read_layer_types(fields, config.num_hidden_layers);
  fields.expect("head_dim", config.hidden_size / config.num_attention_heads);
  config.global_rope_theta = read_theta(fields, kFull, "global_rope_theta", config.global_rope_theta);
  config.local_rope_theta = read_theta(fields, kSliding, "local_rope_theta", config.local_rope_theta);
  TORCH_CHECK_VALUE(config.hidden_size / config.num_attention_heads % 2 == 0, fields.at("num_attention_heads"), "is ",
                    config.num_attention_heads, ", so each head of hidden_size ", config.hidden_size,
                    " has an odd number of columns. Rotary positions need an even number");
  return std::make_unique<ModernBertConfig>(std::move(config));
}

std::string ModernBertConfig::json() const {
  using Json = nlohmann::ordered_json;
  Json layer_types = Json::array();
  for (const bool local : is_local) {
    layer_types.push_back(local ? kSliding : kFull);
  }
  const auto rope = [](double theta) { return Json{{"rope_theta", theta}, {"rope_type", "default"}}; };
  Json json = {
      {"architectures", {architecture("ModernBert", problem_type)}},
      {"model_type", model_type()},
      {"vocab_size", vocab_size},
      {"hidden_size", hidden_size},
      {"num_hidden_layers", num_hidden_layers},
      {"num_attention_heads", num_attention_heads},
      {"intermediate_size", intermediate_size},
      {"hidden_activation", hidden_activation},
      {"layer_types", layer_types},
      {"local_attention", local_attention},
      {"rope_parameters", {{kFull, rope(global_rope_theta)}, {kSliding, rope(local_rope_theta)}}},
      {"max_position_embeddings", max_position_embeddings},
      {"norm_eps", norm_eps},
      {"norm_bias", norm_bias},
      {"attention_bias", attention_bias},
      {"mlp_bias", mlp_bias},
      {"embedding_dropout", embedding_dropout},
      {"attention_dropout", attention_dropout},
      {"mlp_dropout", mlp_dropout},
      {"classifier_activation", classifier_activation},
      {"classifier_bias", classifier_bias},
      {"classifier_dropout", classifier_dropout},
      {"classifier_pooling", classifier_pooling},
      {"initializer_range", initializer_range},
      {"initializer_cutoff_factor", initializer_cutoff_factor},
      {"pad_token_id", pad_token_id},
      {"problem_type", problem_type_field(problem_type)},
      {"dtype", "float32"},
  };
  // Releases of transformers before 5 know these instead of rope_parameters and layer_types.
  json["global_rope_theta"] = global_rope_theta;
  json["local_rope_theta"] = local_rope_theta;
  for (int64_t every = 1; every <= num_hidden_layers; ++every) {
    if (every_nth_global(num_hidden_layers, every) == is_local) {
      json["global_attn_every_n_layers"] = every;
      break;
    }
  }
  add_common_fields(json, *this);
  return json.dump(2);
}

void ModernBertConfig::set_dropout(double p) {
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "dropout must be in [0, 1), got ", p);
  embedding_dropout = attention_dropout = mlp_dropout = classifier_dropout = p;
}

}  // namespace mezzo::text
