#include "text/tokenizers/tokenizer_json.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "text/io/json.h"
#include "text/tokenizers/wordpiece_model.h"

namespace mezzo::text {

namespace {

using nlohmann::json;

/// One side of a template: the special tokens by name, sequences as "$A" and
/// "$B", each with its type id.
std::string describe_template(const JsonField& pieces) {
  std::string text;
  for (size_t i = 0; i < pieces.as_array().size(); ++i) {
    const JsonField piece = pieces.element(i);
    const bool is_sequence = piece.has("Sequence");
    piece.allowed_keys({"Sequence", "SpecialToken"});
    const JsonField body = piece[is_sequence ? "Sequence" : "SpecialToken"];
    body.allowed_keys({"id", "type_id"});
    text += (i == 0 ? "" : " ") + std::string(is_sequence ? "$" : "") + body["id"].as_string() + ":" +
            std::to_string(body["type_id"].as_id());
  }
  return text;
}

std::pair<std::string, int32_t> read_pair(const JsonField& field) {
  field.expect(field.as_array().size() == 2, "a token and its id");
  return {field.element(0).as_string(), field.element(1).as_id()};
}

/// `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, in either of the two ways
/// that tokenizers writes them.
void read_post_processor(const JsonField& field, TokenizerSpec& spec) {
  const std::string type = field.has("type") ? field["type"].as_string() : "";
  if (type == "BertProcessing") {
    field.allowed_keys({"type", "cls", "sep"});
    std::tie(spec.cls_token, spec.cls_id) = read_pair(field["cls"]);
    std::tie(spec.sep_token, spec.sep_id) = read_pair(field["sep"]);
    return;
  }
  field.expect(type == "TemplateProcessing", "TemplateProcessing or BertProcessing");
  field.allowed_keys({"type", "single", "pair", "special_tokens"});
  const JsonField single = field["single"];
  single.expect(single.as_array().size() == 3, "[CLS] $A [SEP], the template of BERT");
  const std::string cls = single.element(0)["SpecialToken"]["id"].as_string();
  const std::string sep = single.element(2)["SpecialToken"]["id"].as_string();
  const std::string single_template = cls + ":0 $A:0 " + sep + ":0";
  single.expect(describe_template(single) == single_template, "\"" + single_template + "\", the template of BERT");
  const std::string pair_template = single_template + " $B:1 " + sep + ":1";
  field["pair"].expect(describe_template(field["pair"]) == pair_template,
                       "\"" + pair_template + "\", the template of BERT");
  const auto only_id = [&](const std::string& token) {
    const JsonField ids = field["special_tokens"][token]["ids"];
    ids.expect(ids.as_array().size() == 1, "one id");
    return ids.element(0).as_id();
  };
  spec.cls_token = cls;
  spec.sep_token = sep;
  spec.cls_id = only_id(cls);
  spec.sep_id = only_id(sep);
}

}  // namespace

std::string model_type(const JsonField& model) {
  if (model.has("type")) return model["type"].as_string();
  return model.has("merges") ? "BPE" : model.has("continuing_subword_prefix") ? "WordPiece" : "Unigram";
}

void check_tokenizer_json_sections(const JsonField& root) {
  root.allowed_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
  // Nothing of these makes ids but the side of truncation; still a key that nobody knows might.
  if (!root["truncation"].is_null()) {
    root["truncation"].allowed_keys({"direction", "max_length", "strategy", "stride"});
  }
  if (!root["padding"].is_null()) {
    root["padding"].allowed_keys({"strategy", "direction", "pad_to_multiple_of", "pad_id", "pad_type_id", "pad_token"});
  }
}

std::optional<std::string> read_padding_token(const JsonField& root) {
  const JsonField padding = root["padding"];
  if (padding.is_null()) return std::nullopt;
  return padding["pad_token"].as_string();
}

TokenList read_tokenizer_json_added_tokens(const JsonField& root) {
  TokenList list;
  const JsonField field = root["added_tokens"];
  if (field.is_null()) return list;
  for (size_t i = 0; i < field.as_array().size(); ++i) {
    const JsonField entry = field.element(i);
    entry.allowed_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token = read_added_token(entry, /*special=*/false);
    token.id = entry["id"].as_id();
    entry.expect(list.add_if_new(token),
                 "a token that is not listed before, but " + quoted_json(token.content) + " is there twice");
  }
  return list;
}

BertTokenizerOptions read_bert_normalizer(const JsonField& field) {
  field.expect(field.has("type") && field["type"].value() == "BertNormalizer", "BertNormalizer");
  field.allowed_keys({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  BertTokenizerOptions options;
  options.clean_text(field["clean_text"].as_bool())
      .tokenize_chinese_chars(field["handle_chinese_chars"].as_bool())
      .do_lower_case(field["lowercase"].as_bool());
  const JsonField strip = field["strip_accents"];
  if (!strip.is_null()) options.strip_accents(strip.as_bool());
  return options;
}

bool is_bert_document(const json& document) {
  const auto type_is = [&](const char* part, const char* type) {
    return document.contains(part) && document[part].is_object() && document[part].value("type", json()) == type;
  };
  const auto pieces = [&](const char* key) {
    const json& processor = document["post_processor"];
    return processor.contains(key) ? processor[key].size() : 0;
  };
  return type_is("model", "WordPiece") && type_is("normalizer", "BertNormalizer") &&
         type_is("pre_tokenizer", "BertPreTokenizer") &&
         (type_is("post_processor", "BertProcessing") ||
          (type_is("post_processor", "TemplateProcessing") && pieces("single") == 3 && pieces("pair") == 5));
}

TokenizerSpec read_tokenizer_json(const std::filesystem::path& path, TokenList& added, json& lengths) {
  TokenizerSpec spec;
  spec.source = path.string();
  const json document = read_json(path);
  const JsonField root(document, spec.source, "");
  check_tokenizer_json_sections(root);
  const JsonField model = root["model"];
  model.expect(model_type(model) == "WordPiece", "WordPiece");
  spec.options = read_bert_normalizer(root["normalizer"]);
  const JsonField pre_tokenizer = root["pre_tokenizer"];
  pre_tokenizer.expect(pre_tokenizer.has("type") && pre_tokenizer["type"].value() == "BertPreTokenizer",
                       "BertPreTokenizer");
  pre_tokenizer.allowed_keys({"type"});
  read_post_processor(root["post_processor"], spec);
  spec.vocab = read_wordpiece_vocab(model);
  spec.unk_token = model["unk_token"].as_string();
  spec.continuation_prefix = model["continuing_subword_prefix"].as_string();
  spec.max_chars_per_word = read_max_chars_per_word(model);
  added = read_tokenizer_json_added_tokens(root);
  lengths = {{"truncation", root["truncation"].value()}, {"padding", root["padding"].value()}};
  return spec;
}

}  // namespace mezzo::text
