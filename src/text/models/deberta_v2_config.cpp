#include "text/models/deberta_v2_config.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "text/io/utf8.h"
#include "text/models/activation_names.h"

namespace mezzo::text {
namespace {

/// "P2C | c2p" as {"p2c", "c2p"}.
std::vector<std::string> split_types(const std::string& text) {
  std::vector<std::string> types(1);
  for (const char letter : ascii_lower(text)) {
    if (letter == '|') {
      types.emplace_back();
    } else {
      types.back() += letter;
    }
  }
  for (std::string& type : types) {
    const size_t begin = std::min(type.find_first_not_of(" \t\n"), type.size());
    type = type.substr(begin, type.find_last_not_of(" \t\n") + 1 - begin);
  }
  return types;
}

std::vector<std::string> read_pos_att_type(const ConfigFields& fields) {
  const auto* value = fields.json("pos_att_type");
  std::vector<std::string> types;
  if (value != nullptr && value->is_string()) {
    types = split_types(value->get<std::string>());
  } else if (value != nullptr) {
    TORCH_CHECK_VALUE(value->is_array(), fields.at("pos_att_type"), "is ", value->dump(),
                      ", expected a list such as [\"p2c\", \"c2p\"]");
    for (const auto& type : *value) {
      types.push_back(type.is_string() ? type.get<std::string>() : type.dump());
    }
  }
  for (size_t i = 0; i < types.size(); ++i) {
    TORCH_CHECK_VALUE(types[i] == "c2p" || types[i] == "p2c", fields.at("pos_att_type"), "has ",
                      nlohmann::json(types[i]).dump(), ", mezzo supports: c2p, p2c");
    TORCH_CHECK_VALUE(std::find(types.begin(), types.begin() + static_cast<ptrdiff_t>(i), types[i]) ==
                          types.begin() + static_cast<ptrdiff_t>(i),
                      fields.at("pos_att_type"), "has ", nlohmann::json(types[i]).dump(), " twice");
  }
  return types;
}

void read_relative_positions(const ConfigFields& fields, DebertaV2Config& config) {
  fields.read_flag("relative_attention", config.relative_attention);
  fields.read_flag("share_att_key", config.share_att_key);
  fields.read("max_relative_positions", config.max_relative_positions, -1, ConfigFields::kMaxPositions);
  fields.read("position_buckets", config.position_buckets, -1, ConfigFields::kMaxPositions);
  fields.read_one_of("norm_rel_ebd", config.norm_rel_ebd, {"none", "layer_norm"});
  config.pos_att_type = read_pos_att_type(fields);
  TORCH_CHECK_VALUE(config.relative_attention == !config.pos_att_type.empty(), fields.at("pos_att_type"), "is ",
                    config.pos_att_type.empty() ? "empty" : "given", ", but relative_attention is ",
                    config.relative_attention ? "true" : "false", "; give both or neither");
  TORCH_CHECK_VALUE(config.relative_attention || config.norm_rel_ebd == "none", fields.at("norm_rel_ebd"),
                    "is \"layer_norm\", but relative_attention is false");
  // Distances of up to half the buckets have one each; only beyond is there a logarithm, of farthest() - 1 to that
  // half.
  const int64_t buckets = config.position_buckets, half = buckets / 2;
  const bool has_logarithm = config.relative_attention && buckets > 0 && config.max_tokens() - 1 > half;
  TORCH_CHECK_VALUE(!has_logarithm || (half > 0 && half < config.farthest() - 1), fields.at("position_buckets"), "is ",
                    buckets, ", of which half must be at least 1 and less than the largest distance, ",
                    config.farthest() - 1, ". Set -1 to give each distance its own row");
}

/// Fields that would make another model of it.
void refuse_others(const ConfigFields& fields, const DebertaV2Config& config) {
  fields.expect("pooler_hidden_size", config.hidden_size);
  fields.expect("attention_head_size", config.hidden_size / config.num_attention_heads);
}

}  // namespace

DebertaV2Config::DebertaV2Config() {
  vocab_size = 128100;
  hidden_size = 1536;
  num_hidden_layers = num_attention_heads = 24;
  intermediate_size = 6144;
}

std::unique_ptr<ModelConfig> read_deberta_v2_config(const ConfigFields& fields) {
  auto config = std::make_unique<DebertaV2Config>();
  fields.read_common(*config);
  fields.read("embedding_size", config->embedding_size, 1);
  fields.read("type_vocab_size", config->type_vocab_size, 0);
  fields.read_one_of("hidden_act", config->hidden_act, activation_names());
  fields.read_one_of("pooler_hidden_act", config->pooler_hidden_act, activation_names());
  fields.read_number("hidden_dropout_prob", config->hidden_dropout_prob, 1);
  fields.read_number("attention_probs_dropout_prob", config->attention_probs_dropout_prob, 1);
  fields.read_number("pooler_dropout", config->pooler_dropout, 1);
  fields.read_number("cls_dropout", config->cls_dropout, 1);
  fields.read_number("layer_norm_eps", config->layer_norm_eps, 1);
  fields.read_flag("position_biased_input", config->position_biased_input);
  fields.read_flag("legacy", config->legacy);
  read_relative_positions(fields, *config);
  refuse_others(fields, *config);
  return config;
}

std::string DebertaV2Config::json() const {
  using Json = nlohmann::ordered_json;
  Json json = {
      {"architectures", {architecture("DebertaV2", problem_type)}},
      {"model_type", model_type()},
      {"vocab_size", vocab_size},
      {"hidden_size", hidden_size},
      {"num_hidden_layers", num_hidden_layers},
      {"num_attention_heads", num_attention_heads},
      {"intermediate_size", intermediate_size},
      {"hidden_act", hidden_act},
      {"hidden_dropout_prob", hidden_dropout_prob},
      {"attention_probs_dropout_prob", attention_probs_dropout_prob},
      {"max_position_embeddings", max_position_embeddings},
      {"type_vocab_size", type_vocab_size},
      {"initializer_range", initializer_range},
      {"layer_norm_eps", layer_norm_eps},
      {"pad_token_id", pad_token_id},
      {"position_biased_input", position_biased_input},
      {"relative_attention", relative_attention},
      {"pos_att_type", pos_att_type.empty() ? Json() : Json(pos_att_type)},
      {"share_att_key", share_att_key},
      {"max_relative_positions", max_relative_positions},
      {"position_buckets", position_buckets},
      {"norm_rel_ebd", norm_rel_ebd},
      {"pooler_dropout", pooler_dropout},
      {"pooler_hidden_act", pooler_hidden_act},
      {"pooler_hidden_size", hidden_size},
      {"cls_dropout", cls_dropout < 0 ? Json() : Json(cls_dropout)},
      {"legacy", legacy},
      {"problem_type", problem_type_field(problem_type)},
      {"dtype", "float32"},
  };
  if (embedding_size > 0) {
    json["embedding_size"] = embedding_size;
  }
  add_common_fields(json, *this);
  return json.dump(2);
}

void DebertaV2Config::set_dropout(double p) {
  TORCH_CHECK_VALUE(p >= 0 && p < 1, "dropout must be in [0, 1), got ", p);
  hidden_dropout_prob = attention_probs_dropout_prob = pooler_dropout = cls_dropout = p;
}

bool DebertaV2Config::has_term(std::string_view type) const {
  return std::find(pos_att_type.begin(), pos_att_type.end(), type) != pos_att_type.end();
}

}  // namespace mezzo::text
