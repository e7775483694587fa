#include "text/tokenizers/pipeline_files.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "text/io/json.h"
#include "text/tokenizers/class_document.h"
#include "text/tokenizers/sentencepiece.h"
#include "text/tokenizers/tokenizer_json.h"
#include "text/tokenizers/vocab_files.h"

namespace mezzo::text {

using nlohmann::json;

namespace {

namespace fs = std::filesystem;

constexpr std::pair<const char*, const char*> kSentencepieceFiles[] = {
    {"XLMRobertaTokenizer", "sentencepiece.bpe.model"},  // of kind unigram, for all its name says
    {"CamembertTokenizer", "sentencepiece.bpe.model"},
    {"DebertaV2Tokenizer", "spm.model"},
};

/// The sentencepiece model of a class, or nullopt. A tokenizer.model goes before one of the class's own name.
std::optional<fs::path> find_sentencepiece_file(const fs::path& folder, const std::string& name) {
  const auto own = std::ranges::find(kSentencepieceFiles, name, [](const auto& entry) { return entry.first; });
  const bool has_own = own != std::end(kSentencepieceFiles);
  if (!has_own && name != "TokenizersBackend") return std::nullopt;
  if (is_there(folder / "tokenizer.model")) return folder / "tokenizer.model";
  if (has_own && is_there(folder / own->second)) return folder / own->second;
  return std::nullopt;
}

GivenFiles read_sentencepiece_file(const fs::path& path, const std::string& name) {
  const SentencepieceModel model = read_sentencepiece_model(path);
  GivenFiles given{model.file};
  given.is_sentencepiece = true;
  given.unk_id = model.unk_id;
  given.extra = pieces_found_first(model);
  if (name == "TokenizersBackend") {
    given.document = whole_document(model);
    if (model.bos_id >= 0) given.named.push_back({"bos_token", model.bos_piece});
    if (model.eos_id >= 0) given.named.push_back({"eos_token", model.eos_piece});
    given.named.push_back({"unk_token", model.unk_piece});
  } else {
    TORCH_CHECK_VALUE(model.kind == SentencepieceModel::Kind::kUnigram, model.file,
                      ": trainer_spec: model_type must be unigram for a ", name,
                      ", got bpe; is it another model's file?");
    given.document = unigram_vocabulary(model);
  }
  return given;
}

/// Refuses a tokenizer.json with a part that the class does not make: the class takes only the vocabulary of the file.
void check_is_of_class(const JsonField& root, const std::string& name) {
  const auto check = [&](std::string_view part, const std::string& type, const std::vector<std::string_view>& types) {
    TORCH_CHECK_VALUE(std::ranges::find(types, type) != types.end(), root.file(), ": its ", part, " is ",
                      type.empty() ? "nothing" : quoted_json(type), ", and the class ", name, " needs a ",
                      fmt::format("{}", fmt::join(types, " or ")), part == "model" ? " model" : "",
                      ". If the file is right, set tokenizer_class of tokenizer_config.json to "
                      "PreTrainedTokenizerFast, which takes the whole file");
  };
  const bool is_bert = name == "BertTokenizer";
  check("model", model_type(root["model"]), {is_bert ? "WordPiece" : name == "RobertaTokenizer" ? "BPE" : "Unigram"});
  if (!is_bert) return;
  check_tokenizer_json_sections(root);
  const auto type_of = [&](const char* part) { return root[part].has("type") ? root[part]["type"].as_string() : ""; };
  check("normalizer", type_of("normalizer"), {"BertNormalizer"});
  check("pre_tokenizer", type_of("pre_tokenizer"), {"BertPreTokenizer"});
  check("post_processor", type_of("post_processor"), {"TemplateProcessing", "BertProcessing"});
}

GivenFiles read_vocab_txt_file(const fs::path& path) {
  return {path.string(), {{"model", {{"vocab", read_vocab_txt(path)}}}}};
}

GivenFiles read_files(const fs::path& folder, const std::string& name) {
  if (is_there(folder / "tokenizer.json")) {
    GivenFiles given{(folder / "tokenizer.json").string(), read_json_object(folder / "tokenizer.json")};
    const JsonField root(given.document, given.source, "");
    root["model"].as_object();
    given.added = read_tokenizer_json_added_tokens(root);
    name == "TokenizersBackend" ? check_tokenizer_json_sections(root) : check_is_of_class(root, name);
    return given;
  }
  if (const auto path = find_sentencepiece_file(folder, name)) return read_sentencepiece_file(*path, name);
  const auto need = [&](const char* file) {
    TORCH_CHECK_VALUE(is_there(folder / file), folder.string(), ": neither tokenizer.json nor ", file,
                      " is there, which a ", name, " reads; name a Hugging Face folder with its tokenizer");
    return folder / file;
  };
  const auto own = std::ranges::find(kSentencepieceFiles, name, [](const auto& entry) { return entry.first; });
  if (own != std::end(kSentencepieceFiles)) need(own->second);
  if (name == "RobertaTokenizer") {
    const fs::path vocab = need("vocab.json");
    return {vocab.string(), {{"model", read_bpe_files(vocab, need("merges.txt"))}}};
  }
  return read_vocab_txt_file(need("vocab.txt"));
}

/// The values that mezzo writes into tokenizer_config.json.
json make_config(const TokenizerConfig& config,
                 const std::string& name,
                 const std::vector<NamedToken>& tokens,
                 TruncationSide side) {
  json result = json::object();
  if (name == "BertTokenizer") {
    result = {{"tokenizer_class", name},
              {"do_lower_case", config.root().bool_or("do_lower_case", true)},
              {"tokenize_chinese_chars", config.root().bool_or("tokenize_chinese_chars", true)},
              {"strip_accents", config.root()["strip_accents"].value()}};
    for (const char* key : {"pad_token", "mask_token"}) {
      if (config.is_dropped(key)) result[key] = nullptr;  // else the class has one
    }
  }
  for (const NamedToken& token : tokens) result[token.key] = token.content;
  if (config.model_max_length() != 0) result["model_max_length"] = config.model_max_length();
  if (side == TruncationSide::kLeft) result["truncation_side"] = "left";
  return result;
}

PipelineSpec make_spec(GivenFiles given, const std::shared_ptr<const TokenizerConfig>& files, const std::string& name) {
  const TokenizerConfig& config = *files;
  const bool as_is = name == "TokenizersBackend";
  PipelineSpec spec;
  spec.source = given.source;
  const TruncationSide side = config.truncation_side(JsonField(given.document, spec.source, "")["truncation"]);

  ClassDefaults defaults = as_is ? ClassDefaults() : defaults_of(name);
  if (given.extra) defaults.extra = *given.extra;
  if (as_is) {
    defaults.tokens = given.named;
    const auto padding = read_padding_token(JsonField(given.document, spec.source, ""));
    if (padding) defaults.tokens.push_back({"pad_token", *padding});
  }
  std::vector<NamedToken> tokens;  // as the files define them
  for (const char* key : kSpecialTokens) {
    const auto otherwise = std::ranges::find_if(
        defaults.tokens, [&](const NamedToken& token) { return std::string_view(token.key) == key; });
    if (const auto named = config.named_token(key)) {
      tokens.push_back({key, named->content});
    } else if (otherwise != defaults.tokens.end() && !config.is_dropped(key)) {
      tokens.push_back(*otherwise);
    }
  }
  spec.added_tokens =
      config.added_tokens(std::move(given.added), as_is && !given.is_sentencepiece, tokens, defaults.extra).tokens();
  spec.config = make_config(config, name, tokens, side);
  const bool class_has_types = as_is || name == "BertTokenizer" || name == "DebertaV2Tokenizer";
  spec.has_token_types = config.names_token_types().value_or(class_has_types);
  if (as_is) {
    spec.document = std::move(given.document);
  } else {
    const ClassDocument document(name, config, tokens);
    spec.document = document.make(given);
    spec.post_processor = [document, files](const PipelineSpec::FindId& find) { return document.post_processor(find); };
  }
  // If there is a tokenizer.json, transformers ignores these settings. So do the classes, which write the
  // post-processor last.
  const JsonField root = config.root();
  const bool has_settings = root.has("add_bos_token") || root.has("add_eos_token");
  if (given.is_sentencepiece && has_settings && as_is) {
    spec.post_processor = [root, tokens, files](const PipelineSpec::FindId& find) {
      return post_processor_of_settings(root, tokens, find);
    };
  }
  return spec;
}

}  // namespace

PipelineSpec read_pipeline_folder(const fs::path& folder) {
  const auto config = std::make_shared<const TokenizerConfig>(folder);
  std::string name = config->tokenizer_class();
  // A bare vocab.txt is a BERT's.
  if (name == "TokenizersBackend" && !is_there(folder / "tokenizer.json") && !is_there(folder / "tokenizer.model")) {
    name = "BertTokenizer";
  }
  return make_spec(read_files(folder, name), config, name);
}

PipelineSpec read_bert_vocab(const fs::path& vocab_txt) {
  return make_spec(read_vocab_txt_file(vocab_txt), std::make_shared<const TokenizerConfig>(), "BertTokenizer");
}

}  // namespace mezzo::text
