#include "text/tokenizers/tokenizer_files.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mezzo/text/io/atomic_file.h"
#include "text/tokenizers/added_token_list.h"
#include "text/tokenizers/tokenizer_config.h"
#include "text/tokenizers/tokenizer_json.h"
#include "text/tokenizers/vocab_txt.h"
#include "text/tokenizers/white_space.h"

namespace mezzo::text {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// An empty token is none.
json token_or_null(const std::string& token) { return token.empty() ? json() : json(token); }

}  // namespace

TokenizerSpec read_tokenizer_folder(const fs::path& folder) {
  const fs::path tokenizer_json = folder / "tokenizer.json";
  const fs::path vocab_txt = folder / "vocab.txt";
  const bool has_tokenizer_json = is_there(tokenizer_json);
  TORCH_CHECK_VALUE(has_tokenizer_json || is_there(vocab_txt), folder.string(),
                    ": neither tokenizer.json nor vocab.txt is there; name a Hugging Face folder with its tokenizer");
  const TokenizerConfig config(folder);
  const std::string name = config.tokenizer_class();
  config.root()["tokenizer_class"].expect(name == "BertTokenizer" || name == "TokenizersBackend", "BertTokenizer");
  const bool as_is = name == "TokenizersBackend" && has_tokenizer_json;

  TokenizerSpec spec;
  TokenList added;
  json lengths = json::object();
  if (as_is) {
    spec = read_tokenizer_json(tokenizer_json, added, lengths);
    spec.options.model_max_length(config.model_max_length());
    spec.needs_mask = false;
  } else if (has_tokenizer_json) {
    TokenizerSpec full = read_tokenizer_json(tokenizer_json, added, lengths);
    spec.source = std::move(full.source);
    spec.vocab = std::move(full.vocab);
    spec.options = config.options();
  } else {
    spec = read_vocab_txt(vocab_txt);
    spec.options = config.options();
  }
  const JsonField sections(lengths, spec.source, "");
  std::vector<NamedToken> named;
  if (!as_is) {
    config.read_special_tokens(spec);
    named = {{"unk_token", spec.unk_token},
             {"sep_token", spec.sep_token},
             {"pad_token", spec.pad_token},
             {"cls_token", spec.cls_token},
             {"mask_token", spec.mask_token}};
  } else if (config.is_dropped("pad_token")) {
    spec.pad_token.clear();
  } else if (const auto token = config.named_token("pad_token")) {
    spec.pad_token = token->content;
  } else if (const auto padding = read_padding_token(sections)) {
    spec.pad_token = *padding;
    named = {{"pad_token", *padding}};
  }
  spec.added_tokens = config.added_tokens(std::move(added), as_is, named).tokens();
  spec.truncation_side = config.truncation_side(sections["truncation"]);
  spec.has_token_types = config.names_token_types().value_or(true);
  return spec;
}

void write_tokenizer_folder(const TokenizerSpec& spec,
                            int64_t model_max_length,
                            bool token_types,
                            const fs::path& folder) {
  const auto check = [&](bool holds, const auto&... what) {
    TORCH_CHECK_VALUE(holds, folder.string(), ": this tokenizer cannot be saved as vocab.txt, because ", what...,
                      "; copy its tokenizer.json instead");
  };
  check(spec.continuation_prefix == "##", "its subword prefix is ", quoted_json(spec.continuation_prefix));
  check(spec.max_chars_per_word == 100, "its longest word has ", spec.max_chars_per_word, " characters, not 100");
  check(spec.options.clean_text(), "it does not clean the text");

  // A line that an equal line follows does not count, so the last token also fills
  // the ids that no token has.
  std::vector<std::string> lines(spec.vocab.empty() ? 0 : spec.vocab.back().second + 1, spec.vocab.back().first);
  for (const auto& [token, id] : spec.vocab) {
    check(token.find('\n') == token.npos && trim_end(token).size() == token.size(), "the token ", quoted_json(token),
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
                 {"pad_token", token_or_null(spec.pad_token)},
                 {"cls_token", spec.cls_token},
                 {"sep_token", spec.sep_token},
                 {"mask_token", token_or_null(spec.mask_token)},
                 {"model_input_names", model_input_names(token_types)}};
  if (spec.options.strip_accents()) config["strip_accents"] = *spec.options.strip_accents();
  if (model_max_length != 0) config["model_max_length"] = model_max_length;
  if (spec.truncation_side == TruncationSide::kLeft) config["truncation_side"] = "left";
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
