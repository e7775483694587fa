#include "text/tokenizers/tokenizer_json.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "text/io/json_file.h"

namespace mezzo::text {

namespace {

using nlohmann::json;

TokenList read_tokenizer_json_added_tokens(const JsonField& root) {
  TokenList list;
  const JsonField field = root["added_tokens"];
  if (field.is_null()) return list;
  for (size_t i = 0; i < field.as_array().size(); ++i) {
    const JsonField entry = field.element(i);
    AddedToken token = read_added_token(entry, /*special=*/false);
    token.id = entry["id"].as_id();
    entry.expect(list.add_if_new(token), "a token that is not listed before");
  }
  return list;
}

void read_json_vocab(const JsonField& field, TokenizerSpec& spec) {
  for (const auto& [token, id] : field.as_object().items()) {
    check_token_length(spec.source + ": model.vocab", token);
    spec.vocab.emplace_back(token, JsonField(id, spec.source, "model.vocab[" + json(token).dump() + "]").as_id());
  }
  std::sort(spec.vocab.begin(), spec.vocab.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (size_t i = 1; i < spec.vocab.size(); ++i) {
    TORCH_CHECK_VALUE(spec.vocab[i - 1].second != spec.vocab[i].second, spec.source, ": model.vocab gives the id ",
                      spec.vocab[i].second, " to both ", json(spec.vocab[i - 1].first).dump(), " and ",
                      json(spec.vocab[i].first).dump(), "; ids must be distinct");
  }
}

/// One side of a template: the special tokens by name, sequences as "$A" and
/// "$B", each with its type id.
std::string describe_template(const JsonField& pieces) {
  std::string text;
  for (size_t i = 0; i < pieces.as_array().size(); ++i) {
    const JsonField piece = pieces.element(i);
    const bool is_sequence = piece.has("Sequence");
    const JsonField body = piece[is_sequence ? "Sequence" : "SpecialToken"];
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
    std::tie(spec.cls_token, spec.cls_id) = read_pair(field["cls"]);
    std::tie(spec.sep_token, spec.sep_id) = read_pair(field["sep"]);
    return;
  }
  field.expect(type == "TemplateProcessing", "TemplateProcessing or BertProcessing");
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

void read_normalizer(const JsonField& field, TokenizerSpec& spec) {
  field.expect(field.has("type") && field["type"].value() == "BertNormalizer", "BertNormalizer");
  spec.options.clean_text(field["clean_text"].as_bool())
      .tokenize_chinese_chars(field["handle_chinese_chars"].as_bool())
      .do_lower_case(field["lowercase"].as_bool())
      .strip_accents(std::nullopt);
  const JsonField strip = field["strip_accents"];
  if (!strip.is_null()) spec.options.strip_accents(strip.as_bool());
}

}  // namespace

TokenizerSpec read_tokenizer_json(const std::filesystem::path& path, TokenList& added) {
  TokenizerSpec spec;
  spec.source = path.string();
  const json document = read_json(path);
  const JsonField root(document, spec.source, "");
  const JsonField model = root["model"];
  const bool is_wordpiece = model.has("type") ? model["type"].value() == "WordPiece"
                                              : model.has("vocab") && model.has("continuing_subword_prefix");
  model.expect(is_wordpiece, "WordPiece");
  read_normalizer(root["normalizer"], spec);
  const JsonField pre_tokenizer = root["pre_tokenizer"];
  pre_tokenizer.expect(pre_tokenizer.has("type") && pre_tokenizer["type"].value() == "BertPreTokenizer",
                       "BertPreTokenizer");
  read_post_processor(root["post_processor"], spec);
  read_json_vocab(model["vocab"], spec);
  spec.unk_token = model["unk_token"].as_string();
  spec.continuation_prefix = model["continuing_subword_prefix"].as_string();
  const JsonField max_chars = model["max_input_chars_per_word"];
  max_chars.expect(max_chars.value().is_number_unsigned(), "a whole number from 0");
  spec.max_chars_per_word = max_chars.value().get<uint64_t>();
  added = read_tokenizer_json_added_tokens(root);
  return spec;
}

}  // namespace mezzo::text
