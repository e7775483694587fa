#include "text/tokenizers/class_document.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace mezzo::text {

using nlohmann::json;

namespace {

/// The first charsmap among the normalizers, which is all that these classes take of them.
json find_charsmap(const JsonField& normalizer) {
  if (normalizer.is_null()) return nullptr;
  const std::string& type = normalizer["type"].as_string();
  if (type == "Precompiled") return normalizer.value();
  if (type != "Sequence") return nullptr;
  const JsonField steps = normalizer["normalizers"];
  for (size_t i = 0; i < steps.as_array().size(); ++i) {
    if (steps.element(i)["type"].as_string() == "Precompiled") return steps.element(i).value();
  }
  return nullptr;
}

json metaspace(const char* scheme) {
  return {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", true}};
}

json unigram_model(json vocab, size_t unk_id) {
  return {{"type", "Unigram"}, {"unk_id", unk_id}, {"byte_fallback", false}, {"vocab", std::move(vocab)}};
}

/// The place of the first entry that says what `is_unk` looks for.
template <class IsUnk>
size_t find_unk(const json& vocab, const IsUnk& is_unk, size_t otherwise) {
  for (size_t i = 0; i < vocab.size(); ++i) {
    if (vocab[i].is_array() && vocab[i].size() == 2 && is_unk(vocab[i])) return i;
  }
  return otherwise;
}

/// The template put around texts: special tokens, and "$A" and "$B" in the places of the texts, each with its token
/// type.
using Template = std::vector<std::pair<std::string, unsigned>>;

json template_processing(const Template& single, const Template& pair, const PipelineSpec::FindId& find) {
  json special_tokens = json::object();
  const auto pieces = [&](const Template& from) {
    json list = json::array();
    for (const auto& [id, type] : from) {
      if (id == "$A" || id == "$B") {
        list.push_back({{"Sequence", {{"id", id.substr(1)}, {"type_id", type}}}});
        continue;
      }
      list.push_back({{"SpecialToken", {{"id", id}, {"type_id", type}}}});
      special_tokens[id] = {
          {"id", id}, {"ids", json::array({static_cast<uint32_t>(find(id))})}, {"tokens", json::array({id})}};
    }
    return list;
  };
  json result = {{"type", "TemplateProcessing"}, {"single", pieces(single)}, {"pair", pieces(pair)}};
  result["special_tokens"] = std::move(special_tokens);
  return result;
}

}  // namespace

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
  if (name == "BertTokenizer") {
    return {{{"unk_token", "[UNK]"},
             {"sep_token", "[SEP]"},
             {"pad_token", "[PAD]"},
             {"cls_token", "[CLS]"},
             {"mask_token", "[MASK]"}},
            {}};
  }
  const bool is_camembert = name == "CamembertTokenizer";
  ClassDefaults defaults = {{{"bos_token", "<s>"},
                             {"eos_token", "</s>"},
                             {"unk_token", "<unk>"},
                             {"sep_token", "</s>"},
                             {"pad_token", "<pad>"},
                             {"cls_token", "<s>"},
                             {"mask_token", "<mask>", /*lstrip=*/is_camembert}},
                            {}};
  if (is_camembert) {
    for (const char* token : {"<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"}) {
      defaults.extra.push_back({token, false, false, false, /*normalized=*/false, /*special=*/true});
    }
  }
  return defaults;
}

json ClassDocument::make(GivenFiles& given) const {
  if (name_ == "RobertaTokenizer") return roberta(given.document);
  if (name_ == "BertTokenizer") return bert(given);
  json& vocab = given.document["model"]["vocab"];
  JsonField(vocab, given.source, "model.vocab")
      .expect(vocab.is_array(), "a list of tokens and scores, the vocabulary of a Unigram model");
  if (name_ == "DebertaV2Tokenizer") return deberta(given);
  if (given.is_sentencepiece) vocab = in_fairseq_order(std::move(vocab));
  return xlm_roberta(given);
}

json ClassDocument::post_processor(const PipelineSpec::FindId& find) const {
  const auto token_and_id = [&](const char* key) {
    return json::array({token(key), static_cast<uint32_t>(find(token(key)))});
  };
  if (name_ == "RobertaTokenizer") {
    return {{"type", "RobertaProcessing"},
            {"sep", token_and_id("sep_token")},
            {"cls", token_and_id("cls_token")},
            {"trim_offsets", true},
            {"add_prefix_space", config_.bool_or("add_prefix_space", false)}};
  }
  if (name_ == "BertTokenizer") {
    return {{"type", "BertProcessing"}, {"sep", token_and_id("sep_token")}, {"cls", token_and_id("cls_token")}};
  }
  const bool has_types = name_ == "DebertaV2Tokenizer";
  const std::string first = token(has_types ? "cls_token" : "bos_token");
  const std::string last = token(has_types ? "sep_token" : "eos_token");
  const Template single = {{first, 0}, {"$A", 0}, {last, 0}};
  Template pair = single;
  if (!has_types) pair.emplace_back(last, 0);
  const unsigned type = has_types ? 1 : 0;
  pair.insert(pair.end(), {{"$B", type}, {last, type}});
  return template_processing(single, pair, find);
}

json post_processor_of_settings(const JsonField& config,
                                const std::vector<NamedToken>& tokens,
                                const PipelineSpec::FindId& find) {
  const auto token = [&](const char* setting, std::string_view key) -> std::optional<std::string> {
    const JsonField adds = config[setting];
    const auto found =
        std::ranges::find(tokens, key, [](const NamedToken& named) { return std::string_view(named.key); });
    return adds.is_null() || !adds.as_bool() || found == tokens.end() ? std::nullopt : std::optional(found->content);
  };
  const auto bos = token("add_bos_token", "bos_token"), eos = token("add_eos_token", "eos_token");
  Template single, pair;
  const auto add = [&](Template& pieces, const char* text, unsigned type) {
    if (bos) pieces.emplace_back(*bos, type);
    pieces.emplace_back(text, type);
    if (eos) pieces.emplace_back(*eos, type);
  };
  add(single, "$A", 0);
  pair = single;
  add(pair, "$B", 1);
  return template_processing(single, pair, find);
}

std::string ClassDocument::token(const char* key) const {
  for (const NamedToken& token : tokens_) {
    if (std::string_view(token.key) == key) return token.content;
  }
  files_->named(key).expect(false, "a token, which a " + name_ + " needs");
  return "";
}

/// The ids that fairseq gave to the pieces of a sentencepiece model. fairseq's special tokens come
/// first, instead of the model's "<unk>", "<s>" and "</s>". In CamemBERT's model, they replace only
/// "<unk>".
json ClassDocument::in_fairseq_order(json pieces) const {
  const bool is_camembert = name_ == "CamembertTokenizer";
  json vocab = json::array();
  const auto add = [&](const std::string& piece, double score = 0) { vocab.push_back(json::array({piece, score})); };
  add(is_camembert ? "<s>NOTUSED" : token("bos_token"));
  add(token("pad_token"));
  add(is_camembert ? "</s>NOTUSED" : token("eos_token"));
  add(token("unk_token"));
  if (is_camembert) add("<unk>NOTUSED", -100);
  for (size_t i = is_camembert ? 1 : 3; i < pieces.size(); ++i) vocab.push_back(std::move(pieces[i]));
  add(token("mask_token"));
  return vocab;
}

json ClassDocument::roberta(json& given) const {
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

/// Refuses a vocabulary without the special tokens: their ids would be beyond the rows of the model's embedding.
void ClassDocument::check_special_tokens(const GivenFiles& given) const {
  const json& vocab = given.document["model"]["vocab"];
  std::vector<std::string> missing;
  for (const NamedToken& token : tokens_) {
    const bool is_of_bert = std::string_view(token.key) != "bos_token" && std::string_view(token.key) != "eos_token";
    if (is_of_bert && !vocab.contains(token.content)) missing.push_back(quoted_json(token.content));
  }
  TORCH_CHECK_VALUE(
      missing.empty(), given.source, ": the vocabulary lacks the token", missing.size() > 1 ? "s " : " ",
      fmt::format("{}", fmt::join(missing, ", ")),
      missing.size() > 1 ? "; is it that of a BERT model, one token a line?" : "; add it, or fetch the file again");
}

json ClassDocument::bert(GivenFiles& given) const {
  check_special_tokens(given);
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
            {"vocab", std::move(given.document["model"]["vocab"])}}}};
}

json ClassDocument::xlm_roberta(GivenFiles& given) const {
  json vocab = std::move(given.document["model"]["vocab"]);
  size_t unk_id = 3;
  if (name_ == "CamembertTokenizer") {
    const std::string unk = token("unk_token");
    unk_id = find_unk(vocab, [&](const json& entry) { return entry[0] == unk; }, 0);
  }
  const json space = metaspace(config_.bool_or("add_prefix_space", true) ? "always" : "never");
  return {
      {"normalizer", find_charsmap(given.normalizer())},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", json::array({{{"type", "WhitespaceSplit"}}, space})}}},
      {"decoder", space},
      {"model", unigram_model(std::move(vocab), unk_id)}};
}

json ClassDocument::deberta(GivenFiles& given) const {
  json vocab = std::move(given.document["model"]["vocab"]);
  size_t unk_id = 1;
  if (config_.has("unk_id")) unk_id = static_cast<size_t>(config_["unk_id"].as_id());
  if (given.unk_id >= 0) unk_id = static_cast<size_t>(given.unk_id);
  if (!files_->is_dropped("unk_token")) {
    const std::string unk = token("unk_token");
    unk_id = find_unk(vocab, [&](const json& entry) { return entry[0] == unk && entry[1] == 0.0; }, unk_id);
  }
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
          {"model", unigram_model(std::move(vocab), unk_id)}};
}

}  // namespace mezzo::text
