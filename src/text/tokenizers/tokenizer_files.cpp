#include "text/tokenizers/tokenizer_files.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <unordered_map>

#include "mezzo/text/io/atomic_file.h"
#include "text/io/json_file.h"
#include "text/io/read_file.h"
#include "text/io/utf8.h"
#include "text/tokenizers/unicode.h"

namespace mezzo::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;  // far above any vocabulary

/// Longer ones are no tokens but somebody's text. Looking for tokens takes time in proportion to the longest.
constexpr size_t kMaxTokenBytes = 1000;

void check_length(const std::string& where, std::string_view token) {
  TORCH_CHECK_VALUE(token.size() <= kMaxTokenBytes, where, ": a token of ", token.size(), " bytes; at most ",
                    kMaxTokenBytes, " make one. Is this the vocabulary of a BERT model?");
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// A JSON value that knows its file and its name there, so that each check makes a complete message.
class Field {
 public:
  Field(const json& value, const std::string& file, std::string name)
      : value_(&value), file_(&file), name_(std::move(name)) {}

  const json& value() const { return *value_; }
  const std::string& file() const { return *file_; }
  const std::string& name() const { return name_; }
  bool is_null() const { return value_->is_null(); }
  bool has(const char* key) const { return value_->is_object() && value_->contains(key); }

  /// A member; a missing one is a null Field, which every `as_` function refuses.
  Field operator[](const std::string& key) const {
    static const json kNull;
    const auto member = as_object().find(key);
    return {member == value_->end() ? kNull : *member, *file_, name_.empty() ? key : name_ + "." + key};
  }

  const json& as_object() const { return expect(value_->is_object(), "an object"), *value_; }
  const json& as_array() const { return expect(value_->is_array(), "an array"), *value_; }
  bool as_bool() const { return expect(value_->is_boolean(), "true or false"), value_->get<bool>(); }
  const std::string& as_string() const {
    expect(value_->is_string(), "a string");
    return value_->get_ref<const std::string&>();
  }
  int32_t as_id() const {
    expect(value_->is_number_unsigned() && value_->get<uint64_t>() < std::numeric_limits<int32_t>::max(),
           "an id, a whole number from 0");
    return value_->get<int32_t>();
  }
  Field element(size_t i) const { return {(*value_)[i], *file_, name_ + "[" + std::to_string(i) + "]"}; }
  bool bool_or(const char* key, bool otherwise) const { return has(key) ? (*this)[key].as_bool() : otherwise; }

  /// Refuses the file: what the field must be, against what it is.
  void expect(bool holds, const std::string& expected) const {
    TORCH_CHECK_VALUE(holds, *file_, ": ", name_.empty() ? "the file" : name_, " must be ", expected, ", got ",
                      describe(*value_), "; check that the file is whole and belongs to a BERT tokenizer");
  }

 private:
  static std::string describe(const json& value) {
    if (value.is_object() && value.contains("type") && value["type"].is_string()) return describe(value["type"]);
    if (value.is_structured()) return value.is_object() ? "an object" : "an array";
    std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return text == "null" ? "nothing" : text;
  }

  const json* value_;
  const std::string* file_;
  std::string name_;
};

/// `{"content": "[CLS]", "lstrip": false, ...}`, or only the content.
AddedToken read_added_token(const Field& field, bool special) {
  AddedToken token;
  token.special = special;
  const bool is_content = field.value().is_string();
  token.content = (is_content ? field : field["content"]).as_string();
  check_length(field.file() + ": " + field.name(), token.content);
  if (is_content) {
    token.normalized = !special;
    return token;
  }
  token.special = field.bool_or("special", special);
  token.single_word = field.bool_or("single_word", false);
  token.lstrip = field.bool_or("lstrip", false);
  token.rstrip = field.bool_or("rstrip", false);
  token.normalized = field.bool_or("normalized", !token.special);
  return token;
}

/// The tokens that the files name, with the rules of transformers for which one wins.
class TokenList {
 public:
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  /// False, and nothing is added, where a token of that content is there.
  bool add_if_new(const AddedToken& token) {
    const bool is_new = places_.emplace(token.content, tokens_.size()).second;
    if (is_new) tokens_.push_back(token);
    return is_new;
  }
  void add_or_replace(const AddedToken& token) {
    if (!add_if_new(token)) tokens_[places_.at(token.content)] = token;
  }

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, size_t> places_;  // by content
};

TokenList read_tokenizer_json_added_tokens(const Field& root) {
  TokenList list;
  const Field field = root["added_tokens"];
  if (field.is_null()) return list;
  for (size_t i = 0; i < field.as_array().size(); ++i) {
    const Field entry = field.element(i);
    AddedToken token = read_added_token(entry, /*special=*/false);
    token.id = entry["id"].as_id();
    entry.expect(list.add_if_new(token), "a token that is not listed before");
  }
  return list;
}

void read_json_vocab(const Field& field, TokenizerSpec& spec) {
  for (const auto& [token, id] : field.as_object().items()) {
    check_length(spec.source + ": model.vocab", token);
    spec.vocab.emplace_back(token, Field(id, spec.source, "model.vocab[" + json(token).dump() + "]").as_id());
  }
  std::sort(spec.vocab.begin(), spec.vocab.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (size_t i = 1; i < spec.vocab.size(); ++i) {
    TORCH_CHECK_VALUE(spec.vocab[i - 1].second != spec.vocab[i].second, spec.source, ": model.vocab gives the id ",
                      spec.vocab[i].second, " to both ", json(spec.vocab[i - 1].first).dump(), " and ",
                      json(spec.vocab[i].first).dump(), "; ids must be distinct");
  }
}

/// One side of a template: the special tokens by name, sequences as "$A" and "$B", each with its type id.
std::string describe_template(const Field& pieces) {
  std::string text;
  for (size_t i = 0; i < pieces.as_array().size(); ++i) {
    const Field piece = pieces.element(i);
    const bool is_sequence = piece.has("Sequence");
    const Field body = piece[is_sequence ? "Sequence" : "SpecialToken"];
    text += (i == 0 ? "" : " ") + std::string(is_sequence ? "$" : "") + body["id"].as_string() + ":" +
            std::to_string(body["type_id"].as_id());
  }
  return text;
}

std::pair<std::string, int32_t> read_pair(const Field& field) {
  field.expect(field.as_array().size() == 2, "a token and its id");
  return {field.element(0).as_string(), field.element(1).as_id()};
}

/// `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, in either of the two ways that tokenizers writes them.
void read_post_processor(const Field& field, TokenizerSpec& spec) {
  const std::string type = field.has("type") ? field["type"].as_string() : "";
  if (type == "BertProcessing") {
    std::tie(spec.cls_token, spec.cls_id) = read_pair(field["cls"]);
    std::tie(spec.sep_token, spec.sep_id) = read_pair(field["sep"]);
    return;
  }
  field.expect(type == "TemplateProcessing", "TemplateProcessing or BertProcessing");
  const Field single = field["single"];
  single.expect(single.as_array().size() == 3, "[CLS] $A [SEP], the template of BERT");
  const std::string cls = single.element(0)["SpecialToken"]["id"].as_string();
  const std::string sep = single.element(2)["SpecialToken"]["id"].as_string();
  const std::string single_template = cls + ":0 $A:0 " + sep + ":0";
  single.expect(describe_template(single) == single_template, "\"" + single_template + "\", the template of BERT");
  const std::string pair_template = single_template + " $B:1 " + sep + ":1";
  field["pair"].expect(describe_template(field["pair"]) == pair_template,
                       "\"" + pair_template + "\", the template of BERT");
  const auto only_id = [&](const std::string& token) {
    const Field ids = field["special_tokens"][token]["ids"];
    ids.expect(ids.as_array().size() == 1, "one id");
    return ids.element(0).as_id();
  };
  spec.cls_token = cls;
  spec.sep_token = sep;
  spec.cls_id = only_id(cls);
  spec.sep_id = only_id(sep);
}

void read_normalizer(const Field& field, TokenizerSpec& spec) {
  field.expect(field.has("type") && field["type"].value() == "BertNormalizer", "BertNormalizer");
  spec.options.clean_text(field["clean_text"].as_bool())
      .tokenize_chinese_chars(field["handle_chinese_chars"].as_bool())
      .do_lower_case(field["lowercase"].as_bool())
      .strip_accents(std::nullopt);
  const Field strip = field["strip_accents"];
  if (!strip.is_null()) spec.options.strip_accents(strip.as_bool());
}

/// tokenizer.json, all of it, as tokenizers reads it.
TokenizerSpec read_tokenizer_json(const fs::path& path, TokenList& added) {
  TokenizerSpec spec;
  spec.source = path.string();
  const json document = read_json(path);
  const Field root(document, spec.source, "");
  const Field model = root["model"];
  const bool is_wordpiece = model.has("type") ? model["type"].value() == "WordPiece"
                                              : model.has("vocab") && model.has("continuing_subword_prefix");
  model.expect(is_wordpiece, "WordPiece");
  read_normalizer(root["normalizer"], spec);
  const Field pre_tokenizer = root["pre_tokenizer"];
  pre_tokenizer.expect(pre_tokenizer.has("type") && pre_tokenizer["type"].value() == "BertPreTokenizer",
                       "BertPreTokenizer");
  read_post_processor(root["post_processor"], spec);
  read_json_vocab(model["vocab"], spec);
  spec.unk_token = model["unk_token"].as_string();
  spec.continuation_prefix = model["continuing_subword_prefix"].as_string();
  const Field max_chars = model["max_input_chars_per_word"];
  max_chars.expect(max_chars.value().is_number_unsigned(), "a whole number from 0");
  spec.max_chars_per_word = max_chars.value().get<uint64_t>();
  added = read_tokenizer_json_added_tokens(root);
  return spec;
}

/// tokenizer_config.json with the older files beside it, as far as they make ids.
class TokenizerConfig {
 public:
  explicit TokenizerConfig(const fs::path& folder)
      : folder_(folder), file_((folder / "tokenizer_config.json").string()) {
    if (is_there(file_)) {
      config_ = read_json(file_);
      exists_ = true;
      root().as_object();
    }
    if (!config_.contains("added_tokens_decoder")) merge_special_tokens_map();
  }

  Field root() const { return {config_, file_, ""}; }

  /// Whether the class takes all of tokenizer.json. BERT's own classes take only its vocabulary and added tokens.
  bool uses_tokenizer_json_as_is() const {
    const Field name = root()["tokenizer_class"];
    if (name.is_null()) return !exists_ && !is_there(folder_ / "config.json");
    const std::string& value = name.as_string();
    if (value == "PreTrainedTokenizerFast" || value == "TokenizersBackend") return true;
    const std::string base = value.ends_with("Fast") ? value.substr(0, value.size() - 4) : value;
    constexpr std::array kBert = {"BertTokenizer",       "DistilBertTokenizer", "ElectraTokenizer",
                                  "MobileBertTokenizer", "ConvBertTokenizer",   "SqueezeBertTokenizer"};
    name.expect(std::find(kBert.begin(), kBert.end(), base) != kBert.end(), "BertTokenizer");
    return false;
  }

  BertTokenizerOptions options() const {
    BertTokenizerOptions options;
    options.do_lower_case(root().bool_or("do_lower_case", true))
        .tokenize_chinese_chars(root().bool_or("tokenize_chinese_chars", true));
    const Field strip = root()["strip_accents"];
    if (!strip.is_null()) options.strip_accents(strip.as_bool());
    options.model_max_length(model_max_length());
    return options;
  }

  /// transformers writes 10^30 where there is no limit.
  int64_t model_max_length() const {
    const auto value = config_.find("model_max_length");
    const bool is_length = value != config_.end() && value->is_number_integer() && *value > 0 && *value < (1 << 20);
    return is_length ? value->get<int64_t>() : 0;
  }

  /// Names of special tokens; a name that the config lacks keeps its value.
  void read_special_tokens(TokenizerSpec& spec) const {
    const Field split = root()["split_special_tokens"];
    split.expect(split.is_null() || !split.as_bool(), "false (special tokens in a text are always found)");
    for (const auto& [key, token] : {std::pair{"unk_token", &spec.unk_token},
                                     {"pad_token", &spec.pad_token},
                                     {"cls_token", &spec.cls_token},
                                     {"sep_token", &spec.sep_token},
                                     {"mask_token", &spec.mask_token}}) {
      if (!root()[key].is_null()) *token = read_added_token(root()[key], /*special=*/true).content;
    }
  }

  /// The added tokens in the order in which transformers adds them.
  TokenList added_tokens(TokenList from_tokenizer_json, bool as_is, const TokenizerSpec& spec) const {
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
    if (as_is && !exists_) return list;
    add_named(spec, as_is, list);
    return list;
  }

 private:
  /// special_tokens_map.json, from before added_tokens_decoder, overrules the config.
  void merge_special_tokens_map() {
    const fs::path path = folder_ / "special_tokens_map.json";
    if (!is_there(path)) return;
    const json map = read_json(path);
    for (const auto& [key, value] : Field(map, file_, "").as_object().items()) config_[key] = value;
  }

  TokenList read_decoder() const {
    std::map<int32_t, AddedToken> by_id;
    const Field decoder = root()["added_tokens_decoder"];
    for (const auto& [key, value] : decoder.as_object().items()) {
      const bool is_number = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == key.npos;
      const Field entry = decoder[key];
      entry.expect(is_number && value.is_object(), "a token under its id");
      AddedToken token = read_added_token(entry, /*special=*/false);
      token.id = std::stoi(key);
      by_id[token.id] = token;
    }
    TokenList list;
    for (const auto& [id, token] : by_id) list.add_or_replace(token);
    return list;
  }

  TokenList read_added_tokens_json() const {
    TokenList list;
    const fs::path path = folder_ / "added_tokens.json";
    if (!is_there(path)) return list;
    const std::string file = path.string();
    const json document = read_json(path);
    for (const auto& [content, id] : Field(document, file, "").as_object().items()) {
      AddedToken token;
      token.content = content;
      token.id = Field(id, file, json(content).dump()).as_id();
      check_length(file, content);
      list.add_if_new(token);
    }
    return list;
  }

  void add_named(const TokenizerSpec& spec, bool as_is, TokenList& list) const {
    const auto add = [&](const char* key, const std::string& otherwise) {
      const Field field = root()[key];
      AddedToken token;
      if (!field.is_null()) {
        token = read_added_token(field, /*special=*/true);
      } else if (!as_is && !otherwise.empty()) {
        token = AddedToken{otherwise, false, false, false, /*normalized=*/false, /*special=*/true};
      } else {
        return;
      }
      list.add_if_new(token);
    };
    add("bos_token", "");
    add("eos_token", "");
    add("unk_token", spec.unk_token);
    add("sep_token", spec.sep_token);
    add("pad_token", spec.pad_token);
    add("cls_token", spec.cls_token);
    add("mask_token", spec.mask_token);
    for (const auto& [key, value] : config_.items()) {
      if (key.ends_with("_token") && (value.is_string() || value.is_object())) add(key.c_str(), "");
    }
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
      const Field field = root()[key];
      if (field.is_null()) continue;
      field.expect(field.value().is_structured(), "a list of tokens");
      for (const auto& [name, value] : field.value().items()) {
        list.add_if_new(read_added_token(Field(value, file_, std::string(key) + "." + name), /*special=*/true));
      }
    }
  }

  fs::path folder_;
  std::string file_;
  json config_ = json::object();
  bool exists_ = false;
};

/// Rust's `str::trim_end`: Unicode white space.
std::string_view trim_end(std::string_view line) {
  while (!line.empty()) {
    const char32_t c = last_code_point(line);
    if (!(unicode::properties(c).flags & unicode::kWhiteSpace)) break;
    line.remove_suffix(c < 0x80 ? 1 : c < 0x800 ? 2 : 3);
  }
  return line;
}

}  // namespace

TokenizerSpec read_vocab_txt(const fs::path& path) {
  TokenizerSpec spec;
  spec.source = path.string();
  const std::string bytes = read_file(path, kMaxFileBytes);
  std::unordered_map<std::string_view, int32_t> ids;
  int32_t line_number = 0;
  for (size_t begin = 0; begin < bytes.size(); ++line_number) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    const std::string_view line = std::string_view(bytes).substr(begin, end - begin);
    TORCH_CHECK_VALUE(find_invalid_utf8(line) == line.size(), spec.source, ":", line_number + 1,
                      ": not UTF-8; save the vocabulary as UTF-8");
    const std::string_view token = trim_end(line);
    check_length(spec.source + ":" + std::to_string(line_number + 1), token);
    ids[token] = line_number;
    begin = end + 1;
  }
  spec.vocab.assign(ids.begin(), ids.end());
  std::sort(spec.vocab.begin(), spec.vocab.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return spec;
}

TokenizerSpec read_tokenizer_folder(const fs::path& folder) {
  const fs::path tokenizer_json = folder / "tokenizer.json";
  const fs::path vocab_txt = folder / "vocab.txt";
  const bool has_tokenizer_json = is_there(tokenizer_json);
  TORCH_CHECK_VALUE(has_tokenizer_json || is_there(vocab_txt), folder.string(),
                    ": neither tokenizer.json nor vocab.txt is there; name a Hugging Face folder of a BERT model");
  const TokenizerConfig config(folder);
  const bool as_is = config.uses_tokenizer_json_as_is() && has_tokenizer_json;

  TokenizerSpec spec;
  TokenList added;
  if (as_is) {
    spec = read_tokenizer_json(tokenizer_json, added);
    spec.options.model_max_length(config.model_max_length());
    spec.needs_mask = false;
  } else if (has_tokenizer_json) {
    TokenizerSpec full = read_tokenizer_json(tokenizer_json, added);
    spec.source = std::move(full.source);
    spec.vocab = std::move(full.vocab);
    spec.options = config.options();
  } else {
    spec = read_vocab_txt(vocab_txt);
    spec.options = config.options();
  }
  if (!as_is) {
    config.read_special_tokens(spec);
  } else if (!config.root()["pad_token"].is_null()) {
    spec.pad_token = read_added_token(config.root()["pad_token"], /*special=*/true).content;
  }
  spec.added_tokens = config.added_tokens(std::move(added), as_is, spec).tokens();
  return spec;
}

void write_tokenizer_folder(const TokenizerSpec& spec, int64_t model_max_length, const fs::path& folder) {
  const auto check = [&](bool holds, const auto&... what) {
    TORCH_CHECK_VALUE(holds, folder.string(), ": this tokenizer cannot be saved as vocab.txt, because ", what...,
                      "; copy its tokenizer.json instead");
  };
  check(spec.continuation_prefix == "##", "its subword prefix is ", json(spec.continuation_prefix).dump());
  check(spec.max_chars_per_word == 100, "its longest word has ", spec.max_chars_per_word, " characters, not 100");
  check(spec.options.clean_text(), "it does not clean the text");

  // A line that an equal line follows does not count, so the last token also fills the ids that no token has.
  std::vector<std::string> lines(spec.vocab.empty() ? 0 : spec.vocab.back().second + 1, spec.vocab.back().first);
  for (const auto& [token, id] : spec.vocab) {
    check(token.find('\n') == token.npos && trim_end(token).size() == token.size(), "the token ", json(token).dump(),
          " would lose its white space");
    lines[id] = token;
  }
  std::string vocab;
  for (const std::string& line : lines) vocab.append(line).push_back('\n');

  json config = {{"tokenizer_class", "BertTokenizer"},
                 {"do_lower_case", spec.options.do_lower_case()},
                 {"tokenize_chinese_chars", spec.options.tokenize_chinese_chars()},
                 {"strip_accents", nullptr},
                 {"unk_token", spec.unk_token},
                 {"pad_token", spec.pad_token},
                 {"cls_token", spec.cls_token},
                 {"sep_token", spec.sep_token},
                 {"mask_token", spec.mask_token}};
  if (spec.options.strip_accents()) config["strip_accents"] = *spec.options.strip_accents();
  if (model_max_length != 0) config["model_max_length"] = model_max_length;
  json decoder = json::object();
  for (const AddedToken& token : spec.added_tokens) {
    decoder[std::to_string(token.id)] = {{"content", token.content},       {"single_word", token.single_word},
                                         {"lstrip", token.lstrip},         {"rstrip", token.rstrip},
                                         {"normalized", token.normalized}, {"special", token.special}};
  }
  config["added_tokens_decoder"] = std::move(decoder);
  write_file_atomically(folder / "vocab.txt", vocab);
  write_file_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace mezzo::text
