#include "text/tokenizers/tokenizer_config.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "text/io/json.h"

namespace mezzo::text {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using enum FieldUse;

constexpr KnownField kFields[] = {
    {"add_bos_token", kRead},
    {"add_eos_token", kRead},
    {"add_prefix_space", kRead},
    {"added_tokens_decoder", kRead},
    {"additional_special_tokens", kRead},
    {"auto_map", kNoEffect},  // transformers has built-in classes for these models
    {"backend", kNoEffect},
    {"bos_token", kRead},
    {"chat_control_tokens", kNoEffect},
    {"chat_template", kNoEffect},
    {"clean_up_tokenization_spaces", kNoEffect},  // of decoding, as errors
    {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", kNoEffect},
    {"cls_token", kRead},
    {"do_basic_tokenize", kNoEffect},  // of classes in Python, as never_split and sp_model_kwargs
    {"do_lower_case", kRead},
    {"eos_token", kRead},
    {"errors", kNoEffect},
    {"extra_special_tokens", kRead},
    {"files_loaded", kNoEffect},
    {"fix_mistral_regex", kNoEffect},  // of Mistral's models
    {"is_local", kNoEffect},
    {"mask_token", kRead},
    {"max_len", kRead},  // model_max_length in older files
    {"max_length", kNoEffect},
    {"model_input_names", kRead},
    {"model_max_length", kRead},
    {"model_specific_special_tokens", kNoEffect},
    {"name_or_path", kNoEffect},
    {"never_split", kNoEffect},
    {"pad_to_multiple_of", kNoEffect},
    {"pad_token", kRead},
    {"pad_token_type_id", kNoEffect},
    {"padding_side", kNoEffect},  // mezzo computes each text without padding
    {"processor_class", kNoEffect},
    {"remove_space", kNoEffect},
    {"response_schema", kNoEffect},
    {"response_template", kNoEffect},
    {"sep_token", kRead},
    {"sp_model_kwargs", kNoEffect},
    {"special_tokens_map_file", kNoEffect},
    {"split_by_punct", kRead},
    {"split_special_tokens", kOnly, "[false]", ": special tokens in a text are always found"},
    {"stride", kNoEffect},
    {"strip_accents", kRead},
    {"tokenize_chinese_chars", kRead},
    {"tokenizer_class", kRead},
    {"tokenizer_file", kNoEffect},
    {"trim_offsets", kNoEffect},
    {"truncation_side", kRead},
    {"truncation_strategy", kNoEffect},
    {"unk_id", kRead},
    {"unk_token", kRead},
    {"use_fast", kNoEffect},
    {"verbose", kNoEffect},
    {"vocab_file", kNoEffect},
    {"vocab_type", kNoEffect},
};
constexpr KnownFields kTables[] = {{{}, kFields}};

}  // namespace

std::span<const KnownFields> known_tokenizer_fields() { return kTables; }

json model_input_names(bool token_types) {
  return token_types ? json{"input_ids", "token_type_ids", "attention_mask"} : json{"input_ids", "attention_mask"};
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

TokenizerConfig::TokenizerConfig(const fs::path& folder)
    : folder_(folder),
      file_((folder / "tokenizer_config.json").string()),
      map_file_((folder / "special_tokens_map.json").string()),
      model_file_((folder / "config.json").string()) {
  if (is_there(file_)) {
    config_ = read_json(file_);
    exists_ = true;
    check_known_fields(root().as_object(), file_, known_tokenizer_fields());
  }
  if (!config_.contains("added_tokens_decoder")) merge_special_tokens_map();
  if (is_there(model_file_)) model_config_ = read_json_object(model_file_);
}

namespace {

using Names = std::span<const std::pair<const char*, const char*>>;

/// The value of a name, or an error that lists the names.
std::string look_up(const JsonField& field, const std::string& name, Names names) {
  std::string known;
  for (const auto& [key, value] : names) {
    if (name == key) return value;
    known += (known.empty() ? "" : ", ") + std::string(key);
  }
  field.expect(false, "one of " + known);
  return "";
}

constexpr std::pair<const char*, const char*> kClasses[] = {
    {"BertTokenizer", "BertTokenizer"},
    {"DistilBertTokenizer", "BertTokenizer"},
    {"ElectraTokenizer", "BertTokenizer"},
    {"MobileBertTokenizer", "BertTokenizer"},
    {"SqueezeBertTokenizer", "BertTokenizer"},
    {"RobertaTokenizer", "RobertaTokenizer"},
    {"XLMRobertaTokenizer", "XLMRobertaTokenizer"},
    {"CamembertTokenizer", "CamembertTokenizer"},
    {"DebertaV2Tokenizer", "DebertaV2Tokenizer"},
    {"PreTrainedTokenizer", "TokenizersBackend"},  // written with "Fast" behind it
    {"TokenizersBackend", "TokenizersBackend"},
};

constexpr std::pair<const char*, const char*> kModelTypes[] = {
    {"bert", "BertTokenizer"},
    {"distilbert", "BertTokenizer"},
    {"electra", "BertTokenizer"},
    {"mobilebert", "BertTokenizer"},
    {"squeezebert", "BertTokenizer"},
    {"roberta", "RobertaTokenizer"},
    {"xlm-roberta", "XLMRobertaTokenizer"},
    {"camembert", "CamembertTokenizer"},
    {"deberta-v2", "DebertaV2Tokenizer"},
    {"modernbert", "TokenizersBackend"},
};

}  // namespace

std::string TokenizerConfig::tokenizer_class() const {
  const JsonField model_config(model_config_, model_file_, "");
  const JsonField model_type = model_config["model_type"];
  if (model_type.value() == "modernbert") return "TokenizersBackend";  // whatever class the files name
  for (const JsonField& name : {root()["tokenizer_class"], model_config["tokenizer_class"]}) {
    if (name.is_null()) continue;
    std::string base = name.as_string();
    if (base.ends_with("Fast")) base.resize(base.size() - 4);
    return look_up(name, base, kClasses);
  }
  if (!model_type.is_null()) return look_up(model_type, model_type.as_string(), kModelTypes);
  return exists_ || is_there(model_file_) ? "BertTokenizer" : "TokenizersBackend";
}

int64_t TokenizerConfig::model_max_length() const {
  const auto value = config_.find(config_.contains("model_max_length") ? "model_max_length" : "max_len");
  const bool is_length = value != config_.end() && value->is_number_integer() && *value > 0 && *value < (1 << 20);
  return is_length ? value->get<int64_t>() : 0;
}

TokenList TokenizerConfig::added_tokens(TokenList from_tokenizer_json,
                                        bool as_is,
                                        const std::vector<NamedToken>& defaults,
                                        const std::vector<AddedToken>& extra) const {
  std::vector<AddedToken> decoder;
  if (root().has("added_tokens_decoder")) {
    decoder = read_decoder().tokens();
  } else {
    TokenList all = read_added_tokens_json();
    for (const AddedToken& token : from_tokenizer_json.tokens()) all.add_or_replace(token);
    decoder = all.tokens();
    std::stable_sort(decoder.begin(), decoder.end(),
                     [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  }
  TokenList list;
  if (as_is) list = std::move(from_tokenizer_json);
  for (const AddedToken& token : decoder) list.add_or_replace(token);
  add_named(defaults, extra, list);
  return list;
}

std::optional<AddedToken> TokenizerConfig::named_token(const char* key) const {
  if (named(key).is_null()) return std::nullopt;
  return read_added_token(named(key), /*special=*/true);
}

std::optional<bool> TokenizerConfig::names_token_types() const {
  const JsonField names = root()["model_input_names"];
  if (names.is_null()) return std::nullopt;
  return std::ranges::find(names.as_array(), "token_type_ids") != names.as_array().end();
}

TruncationSide TokenizerConfig::truncation_side(const JsonField& truncation) const {
  JsonField side = root()["truncation_side"];
  if (side.is_null() && truncation.has("direction")) side = truncation["direction"];
  if (side.is_null()) return TruncationSide::kRight;
  const std::string& name = side.as_string();
  const bool is_left = name == "left" || name == "Left";
  side.expect(is_left || name == "right" || name == "Right", "left or right");
  return is_left ? TruncationSide::kLeft : TruncationSide::kRight;
}

void TokenizerConfig::merge_special_tokens_map() {
  if (!is_there(map_file_)) return;
  const json map = read_json(map_file_);
  for (const auto& [key, value] : JsonField(map, map_file_, "").as_object().items()) {
    config_[key] = value;
    is_in_map_.insert(key);
  }
}

TokenList TokenizerConfig::read_decoder() const {
  std::map<int32_t, AddedToken> by_id;
  const JsonField decoder = root()["added_tokens_decoder"];
  for (const auto& [key, value] : decoder.as_object().items()) {
    const bool is_number = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == key.npos;
    const JsonField entry = decoder[key];
    entry.expect(is_number && value.is_object(), "a token under its id");
    AddedToken token = read_added_token(entry, /*special=*/false);
    token.id = std::stoi(key);
    by_id[token.id] = token;
  }
  TokenList list;
  for (const auto& [id, token] : by_id) list.add_or_replace(token);
  return list;
}

TokenList TokenizerConfig::read_added_tokens_json() const {
  TokenList list;
  const fs::path path = folder_ / "added_tokens.json";
  if (!is_there(path)) return list;
  const std::string file = path.string();
  const json document = read_json(path);
  const std::set<std::string> special = special_contents();
  for (const auto& [content, id] : JsonField(document, file, "").as_object().items()) {
    AddedToken token;
    token.content = content;
    token.special = special.contains(content);
    token.normalized = !token.special;
    token.id = JsonField(id, file, quoted_json(content)).as_id();
    check_token_length(file, content);
    list.add_if_new(token);
  }
  return list;
}

JsonField TokenizerConfig::extra_tokens() const {
  const JsonField extra = named("extra_special_tokens");
  const bool takes_older = extra.value().empty() && config_.contains("additional_special_tokens");
  return takes_older ? named("additional_special_tokens") : extra;
}

std::set<std::string> TokenizerConfig::special_contents() const {
  std::set<std::string> contents;
  const auto add = [&](const JsonField& field, bool is_in_map) {
    if (field.value().is_string() || (is_in_map && field.value().is_object())) {
      contents.insert(read_added_token(field, /*special=*/true).content);
    }
  };
  for (const char* key : kSpecialTokens) add(named(key), is_in_map_.contains(key));
  const JsonField extra = extra_tokens();
  if (extra.value().is_array()) {
    for (size_t i = 0; i < extra.value().size(); ++i) add(extra.element(i), is_in_map_.contains(extra.name()));
  }
  return contents;
}

namespace {

/// Adds tokens to a list. Of several with one content that differ, the last counts. Tokens that were in the list before
/// stay as they are.
class LastOfEqualTokens {
 public:
  explicit LastOfEqualTokens(TokenList& list) : list_(list) {}

  void add(const AddedToken& token) {
    if (list_.add_if_new(token)) {
      added_[token.content] = {token};
      return;
    }
    const auto before = added_.find(token.content);
    if (before == added_.end() || std::ranges::count(before->second, token) > 0) return;
    before->second.push_back(token);
    list_.add_or_replace(token);
  }

 private:
  TokenList& list_;
  std::unordered_map<std::string, std::vector<AddedToken>> added_;  // by content; as many as flags can differ
};

}  // namespace

void TokenizerConfig::add_named(const std::vector<NamedToken>& defaults,
                                const std::vector<AddedToken>& extra,
                                TokenList& list) const {
  LastOfEqualTokens tokens(list);
  for (const char* key : kSpecialTokens) {
    if (const auto token = named_token(key)) {
      tokens.add(*token);
      continue;
    }
    const auto named_so = [&](const NamedToken& token) { return std::string_view(token.key) == key; };
    const auto found = std::ranges::find_if(defaults, named_so);
    if (is_dropped(key) || found == defaults.end() || found->content.empty()) continue;
    tokens.add({found->content, false, found->lstrip, false, /*normalized=*/false, /*special=*/true});
  }
  for (const auto& [key, value] : config_.items()) {
    if (!key.ends_with("_token") || !(value.is_string() || value.is_object())) continue;
    tokens.add(read_added_token(named(key), /*special=*/true));
  }
  const auto add_all = [&](const JsonField& field) {
    field.expect(field.is_null() || field.value().is_structured(), "a list of tokens");
    for (const auto& [name, value] : field.value().items()) {
      tokens.add(read_added_token(JsonField(value, field.file(), field.name() + "." + name), /*special=*/true));
    }
  };
  // An object gives names to tokens of the model's own; only a list takes the place of the class's.
  const JsonField field = extra_tokens(), older = named("additional_special_tokens");
  add_all(field);
  if (field.value().is_object() && field.name() != older.name() && older.value().is_array()) {
    add_all(older);
  } else if (field.value().is_object() || (field.is_null() && !config_.contains(field.name()))) {
    for (const AddedToken& token : extra) tokens.add(token);
  }
}

}  // namespace mezzo::text
