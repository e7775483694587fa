#include "text/tokenizers/pipeline_files.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "text/io/json_file.h"
#include "text/tokenizers/bpe_files.h"
#include "text/tokenizers/tokenizer_json.h"
#include "text/tokenizers/vocab_txt.h"

namespace mezzo::text {

using nlohmann::json;

namespace {

namespace fs = std::filesystem;

/// What a class of transformers has where the files say nothing.
struct ClassDefaults {
  std::vector<NamedToken> tokens;
  std::vector<std::string> extra;
};

ClassDefaults defaults_of(const std::string& name) {
  if (name == "DebertaV2Tokenizer") {
    return {{{"bos_token", "[CLS]"},
             {"eos_token", "[SEP]"},
             {"unk_token", "[UNK]"},
             {"sep_token", "[SEP]"},
             {"pad_token", "[PAD]"},
             {"cls_token", "[CLS]"},
             {"mask_token", "[MASK]"}},
            {}};
  }
  const bool is_mpnet = name == "MPNetTokenizer";
  const bool is_camembert = name == "CamembertTokenizer";
  ClassDefaults defaults = {{{"bos_token", "<s>"},
                             {"eos_token", "</s>"},
                             {"unk_token", is_mpnet ? "[UNK]" : "<unk>"},
                             {"sep_token", "</s>"},
                             {"pad_token", "<pad>"},
                             {"cls_token", "<s>"},
                             {"mask_token", "<mask>", /*lstrip=*/is_mpnet || is_camembert}},
                            {}};
  if (is_camembert) defaults.extra = {"<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"};
  return defaults;
}

/// The first charsmap among the normalizers, which is all that these classes take of them.
json find_charsmap(const json& normalizer) {
  if (!normalizer.is_object()) return nullptr;
  const json list = normalizer.value("type", "") == "Sequence" ? normalizer.value("normalizers", json::array())
                                                               : json::array({normalizer});
  for (const json& step : list) {
    if (step.is_object() && step.value("type", json()) == "Precompiled" && step.contains("precompiled_charsmap")) {
      return step;
    }
  }
  return nullptr;
}

/// Makes the document of a class from what the files give.
class DocumentOfClass {
 public:
  DocumentOfClass(const std::string& name, const TokenizerConfig& config, std::vector<NamedToken> tokens)
      : name_(name), config_(config.root()), tokens_(std::move(tokens)) {}

  /// @param given  "model" with vocab and merges, and "normalizer".
  json make(json given, const std::string& file) const {
    if (name_ == "RobertaTokenizer") return roberta(std::move(given));
    if (name_ == "MPNetTokenizer") return mpnet(std::move(given));
    const JsonField vocab(given["model"]["vocab"], file, "model.vocab");
    vocab.expect(vocab.value().is_array(), "a list of tokens and scores, the vocabulary of a Unigram model");
    return name_ == "DebertaV2Tokenizer" ? deberta(std::move(given)) : xlm_roberta(std::move(given));
  }

  json post_processor(const PipelineSpec::FindId& find) const {
    const auto pair = [&](const char* key) {
      return json::array({token(key), static_cast<uint32_t>(find(token(key)))});
    };
    if (name_ == "RobertaTokenizer" || name_ == "MPNetTokenizer") {
      return {{"type", "RobertaProcessing"},
              {"sep", pair("sep_token")},
              {"cls", pair("cls_token")},
              {"trim_offsets", true},
              {"add_prefix_space", name_ == "RobertaTokenizer" && config_.bool_or("add_prefix_space", false)}};
    }
    const bool is_deberta = name_ == "DebertaV2Tokenizer";
    const std::string first = token(is_deberta ? "cls_token" : "bos_token");
    const std::string last = token(is_deberta ? "sep_token" : "eos_token");
    const auto special = [](const std::string& id, unsigned type) {
      return json{{"SpecialToken", {{"id", id}, {"type_id", type}}}};
    };
    const auto sequence = [](const char* id, unsigned type) {
      return json{{"Sequence", {{"id", id}, {"type_id", type}}}};
    };
    const json single = json::array({special(first, 0), sequence("A", 0), special(last, 0)});
    json both = single;
    if (!is_deberta) both.push_back(special(last, 0));
    both.push_back(sequence("B", is_deberta ? 1 : 0));
    both.push_back(special(last, is_deberta ? 1 : 0));
    json ids = json::object();
    for (const std::string& id : {first, last}) {
      ids[id] = {{"id", id}, {"ids", json::array({static_cast<uint32_t>(find(id))})}, {"tokens", json::array({id})}};
    }
    return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", both}, {"special_tokens", ids}};
  }

 private:
  std::string token(const char* key) const {
    for (const NamedToken& token : tokens_) {
      if (std::string_view(token.key) == key) return token.content;
    }
    return "";
  }

  json roberta(json given) const {
    const bool prefix = config_.bool_or("add_prefix_space", false);
    const json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}, {"use_regex", true}};
    return {{"normalizer", nullptr},
            {"pre_tokenizer", byte_level},
            {"decoder", byte_level},
            {"model",
             {{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", nullptr},
              {"continuing_subword_prefix", ""},
              {"end_of_word_suffix", ""},
              {"fuse_unk", false},
              {"byte_fallback", false},
              {"ignore_merges", false},
              {"vocab", std::move(given["model"]["vocab"])},
              {"merges", given["model"].contains("merges") ? std::move(given["model"]["merges"]) : json::array()}}}};
  }

  json mpnet(json given) const {
    json strip = nullptr;
    if (!config_["strip_accents"].is_null()) strip = config_["strip_accents"].as_bool();
    return {{"normalizer",
             {{"type", "BertNormalizer"},
              {"clean_text", true},
              {"handle_chinese_chars", config_.bool_or("tokenize_chinese_chars", true)},
              {"strip_accents", strip},
              {"lowercase", config_.bool_or("do_lower_case", true)}}},
            {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
            {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
            {"model",
             {{"type", "WordPiece"},
              {"unk_token", token("unk_token")},
              {"continuing_subword_prefix", "##"},
              {"max_input_chars_per_word", 100u},
              {"vocab", std::move(given["model"]["vocab"])}}}};
  }

  static json metaspace(const char* scheme) {
    return {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", true}};
  }

  static json unigram(json vocab, size_t unk_id) {
    return {{"type", "Unigram"}, {"unk_id", unk_id}, {"byte_fallback", false}, {"vocab", std::move(vocab)}};
  }

  /// The place of the first entry that says what `is_unk` looks for.
  template <class IsUnk>
  static size_t find_unk(const json& vocab, const IsUnk& is_unk, size_t otherwise) {
    for (size_t i = 0; i < vocab.size(); ++i) {
      if (vocab[i].is_array() && vocab[i].size() == 2 && is_unk(vocab[i])) return i;
    }
    return otherwise;
  }

  json xlm_roberta(json given) const {
    json vocab = std::move(given["model"]["vocab"]);
    size_t unk_id = 3;
    if (name_ == "CamembertTokenizer") {
      unk_id = find_unk(vocab, [&](const json& entry) { return entry[0] == token("unk_token"); }, 0);
    }
    const json space = metaspace(config_.bool_or("add_prefix_space", true) ? "always" : "never");
    return {{"normalizer", find_charsmap(given["normalizer"])},
            {"pre_tokenizer",
             {{"type", "Sequence"}, {"pretokenizers", json::array({{{"type", "WhitespaceSplit"}}, space})}}},
            {"decoder", space},
            {"model", unigram(std::move(vocab), unk_id)}};
  }

  json deberta(json given) const {
    json vocab = std::move(given["model"]["vocab"]);
    size_t unk_id = 1;
    if (config_.has("unk_id")) unk_id = static_cast<size_t>(config_["unk_id"].as_id());
    if (given.contains("unk_id")) unk_id = given["unk_id"];
    unk_id =
        find_unk(vocab, [&](const json& entry) { return entry[0] == token("unk_token") && entry[1] == 0.0; }, unk_id);
    json normalizers = json::array();
    if (config_.bool_or("do_lower_case", false)) normalizers.push_back({{"type", "Lowercase"}});
    normalizers.push_back({{"type", "Replace"}, {"pattern", {{"Regex", "\\s{2,}|[\\n\\r\\t]"}}}, {"content", " "}});
    normalizers.push_back({{"type", "NFC"}});
    normalizers.push_back({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}});
    json splits = json::array();
    if (config_.bool_or("split_by_punct", false)) {
      splits.push_back({{"type", "Punctuation"}, {"behavior", "Isolated"}});
    }
    const json space = metaspace(config_.bool_or("add_prefix_space", true) ? "always" : "first");
    splits.push_back(space);
    return {{"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
            {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(splits)}}},
            {"decoder", space},
            {"model", unigram(std::move(vocab), unk_id)}};
  }

  std::string name_;
  JsonField config_;
  std::vector<NamedToken> tokens_;
};

/// The vocabulary of a class that has no tokenizer.json.
json read_older_files(const fs::path& folder, const std::string& name, std::string& source) {
  const auto need = [&](const char* file) {
    TORCH_CHECK_VALUE(is_there(folder / file), folder.string(), ": neither tokenizer.json nor ", file,
                      " is there, which a ", name, " reads; name a Hugging Face folder with its tokenizer");
    source = (folder / file).string();
    return folder / file;
  };
  if (name == "RobertaTokenizer") {
    const fs::path vocab = need("vocab.json");
    const fs::path merges = need("merges.txt");
    source = vocab.string();
    return {{"model", read_bpe_files(vocab, merges)}, {"normalizer", nullptr}};
  }
  TORCH_CHECK_VALUE(name == "MPNetTokenizer", folder.string(), ": tokenizer.json is missing, which a ", name,
                    " is read from; name a Hugging Face folder with its tokenizer");
  json vocab = json::object();
  for (const auto& [token, id] : read_vocab_txt(need("vocab.txt")).vocab) vocab[token] = id;
  return {{"model", {{"vocab", std::move(vocab)}}}, {"normalizer", nullptr}};
}

/// What mezzo writes into tokenizer_config.json.
json make_config(const TokenizerConfig& config,
                 const std::vector<NamedToken>& tokens,
                 const std::string& name,
                 TruncationSide side) {
  json result = json::object();
  for (const NamedToken& token : tokens) result[token.key] = token.content;
  if (config.model_max_length() != 0) result["model_max_length"] = config.model_max_length();
  if (side == TruncationSide::kLeft) result["truncation_side"] = "left";
  const JsonField inputs = config.root()["model_input_names"];
  if (!inputs.is_null()) {
    result["model_input_names"] = inputs.value();
  } else if (name == "DebertaV2Tokenizer") {
    result["model_input_names"] = {"input_ids", "attention_mask", "token_type_ids"};
  }
  return result;
}

}  // namespace

PipelineSpec read_pipeline_folder(const fs::path& folder, const TokenizerConfig& config, const std::string& name) {
  const bool as_is = name == "TokenizersBackend";
  const JsonField split = config.root()["split_special_tokens"];
  split.expect(split.is_null() || !split.as_bool(), "false (special tokens in a text are always found)");

  PipelineSpec spec;
  spec.source = (folder / "tokenizer.json").string();
  TokenList added;
  json given;
  if (is_there(folder / "tokenizer.json")) {
    given = read_json_object(folder / "tokenizer.json");
    const JsonField root(given, spec.source, "");
    root["model"].as_object();
    added = read_tokenizer_json_added_tokens(root);
  } else {
    given = read_older_files(folder, name, spec.source);
  }
  const TruncationSide side = config.truncation_side(JsonField(given, spec.source, "")["truncation"]);

  ClassDefaults defaults = as_is ? ClassDefaults() : defaults_of(name);
  std::vector<NamedToken> tokens;  // by what the files say of them
  for (const char* key : kSpecialTokens) {
    const auto otherwise = std::ranges::find_if(
        defaults.tokens, [&](const NamedToken& token) { return std::string_view(token.key) == key; });
    if (const auto named = config.named_token(key)) {
      tokens.push_back({key, named->content});
    } else if (otherwise != defaults.tokens.end()) {
      tokens.push_back(*otherwise);
    }
  }
  spec.added_tokens = config.added_tokens(std::move(added), as_is, tokens, defaults.extra).tokens();
  spec.config = make_config(config, tokens, name, side);
  if (as_is) {
    spec.document = std::move(given);
    return spec;
  }
  const DocumentOfClass document(name, config, tokens);
  spec.document = document.make(std::move(given), spec.source);
  spec.post_processor = [document](const PipelineSpec::FindId& find) { return document.post_processor(find); };
  return spec;
}

}  // namespace mezzo::text
