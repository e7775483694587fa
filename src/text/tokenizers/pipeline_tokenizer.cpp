#include "text/tokenizers/pipeline_tokenizer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "mezzo/text/io/atomic_file.h"
#include "text/io/utf8.h"
#include "text/tokenizers/bpe.h"
#include "text/tokenizers/token_model.h"
#include "text/tokenizers/tokenizer_config.h"
#include "text/tokenizers/tokenizer_json.h"
#include "text/tokenizers/unigram.h"
#include "text/tokenizers/wordpiece.h"
#include "text/tokenizers/words_of_text.h"

namespace mezzo::text {

using nlohmann::json;

namespace {

std::unique_ptr<const TokenModel> read_model(const JsonField& model,
                                             PreTokenizerSequence& of_texts,
                                             PreTokenizerSequence& of_words) {
  const std::string type = model_type(model);
  if (type == "BPE") {
    const bool reads_bytes = Bpe::can_read_bytes(model) && of_texts.leave_bytes() && of_words.leave_bytes();
    return std::make_unique<Bpe>(model, reads_bytes);
  }
  if (type == "Unigram") return std::make_unique<Unigram>(model);
  model.expect(type == "WordPiece", "BPE, Unigram or WordPiece");
  return std::make_unique<WordPiece>(model);
}

/// Makes steps that write bytes as characters put a space before a text.
void begin_with_spaces(json& pre_tokenizer) {
  if (!pre_tokenizer.is_object()) return;
  if (pre_tokenizer.value("type", json()) == "ByteLevel") pre_tokenizer["add_prefix_space"] = true;
  if (const auto steps = pre_tokenizer.find("pretokenizers"); steps != pre_tokenizer.end() && steps->is_array()) {
    for (json& step : *steps) begin_with_spaces(step);
  }
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(PipelineSpec spec)
    : source_(std::move(spec.source)),
      document_(std::move(spec.document)),
      config_(std::move(spec.config)),
      has_token_types_(spec.has_token_types) {
  const JsonField root(document_, source_, "");
  normalizer_ = NormalizerSequence(root["normalizer"]);
  pre_tokenizer_ = PreTokenizerSequence(root["pre_tokenizer"]);
  json with_spaces = document_["pre_tokenizer"];
  begin_with_spaces(with_spaces);
  words_pre_tokenizer_ = PreTokenizerSequence(JsonField(with_spaces, source_, "pre_tokenizer"));
  const auto is_of_type = [&](const char* part, const char* type) {
    return root[part].has("type") && root[part]["type"].value() == type;
  };
  if (is_of_type("normalizer", "BertNormalizer") && is_of_type("pre_tokenizer", "BertPreTokenizer")) {
    bert_.emplace(read_bert_normalizer(root["normalizer"]));
  }
  model_ = read_model(root["model"], pre_tokenizer_, words_pre_tokenizer_);
  tokens_ = model_->vocabulary();
  TORCH_CHECK_VALUE(!tokens_.empty(), source_, ": model.vocab has no token; fetch the file again");

  std::unordered_map<std::string, int32_t> ids;
  for (const auto& [token, id] : tokens_) ids[token] = id;  // of equal ones the last counts
  const auto find_id = [&](const std::string& token) {
    const auto found = ids.find(token);
    return found == ids.end() ? -1 : found->second;
  };
  added_ = AddedVocabulary(source_, std::move(spec.added_tokens), tokens_, find_id,
                           [this](std::string_view text) { return normalizer_(text); });
  for (const AddedToken& token : added_.tokens()) ids[token.content] = token.id;
  if (spec.post_processor) document_["post_processor"] = spec.post_processor(find_id);
  post_processor_ = PostProcessor(root["post_processor"], vocab_size());
  if (!has_token_types_) post_processor_.clear_types();

  const auto max_length = config_.find("model_max_length");
  if (max_length != config_.end()) model_max_length_ = max_length->get<int64_t>();
  if (config_.value("truncation_side", "right") == "left") truncation_side_ = TruncationSide::kLeft;
  const auto pad_token = config_.find("pad_token");
  if (pad_token != config_.end() && pad_token->is_string()) pad_id_ = find_id(pad_token->get<std::string>());
  document_["model"].erase("vocab");
  document_["model"].erase("merges");
  document_.erase("added_tokens");
}

/// Hands words to the model, until there are more than `limit` ids.
class PipelineTokenizer::ModelSink : public WordSink {
 public:
  ModelSink(const TokenModel& model, size_t limit, std::vector<int32_t>& ids)
      : model_(model), limit_(limit), ids_(ids) {}
  void add(std::string_view word, size_t) override { model_.append_ids(word, ids_); }
  bool full() const override { return ids_.size() > limit_; }

 private:
  const TokenModel& model_;
  size_t limit_;
  std::vector<int32_t>& ids_;
};

/// Appends the ids of a text without special tokens. Stops early once there are more than `limit`.
void PipelineTokenizer::append_ids(std::string_view text,
                                   const PreTokenizerSequence& pre_tokenizer,
                                   size_t limit,
                                   std::vector<int32_t>& ids) const {
  std::string repaired;
  if (find_invalid_utf8(text) != text.size()) text = repaired = replace_invalid_utf8(text);
  ModelSink sink(*model_, limit, ids);
  BertWords bert_words(sink);
  const auto append_normalized = [&](std::string_view normalized, size_t from_first) {
    added_.normalized().split(normalized, [&](TextSplit split) {
      if (sink.full()) return;
      if (split.id >= 0) {
        ids.push_back(split.id);
      } else {
        const auto offset = static_cast<size_t>(split.text.data() - normalized.data());
        pre_tokenizer.split(split.text, bytes_behind(from_first, offset), sink);
      }
    });
  };
  added_.raw().split(text, [&](TextSplit split) {
    if (sink.full()) return;
    const size_t from_first = split.text.data() == text.data() ? character_end(text, 0) : 0;
    if (split.id >= 0) {
      ids.push_back(split.id);
    } else if (bert_ && added_.normalized().empty()) {
      bert_->run(split.text, bert_words);
      bert_words.end_word();
    } else if (normalizer_.empty()) {
      append_normalized(split.text, from_first);
    } else {
      NormalizedText normalized{std::string(split.text), from_first};
      normalizer_.normalize(normalized);
      append_normalized(normalized.bytes, normalized.from_first);
    }
  });
}

Encoding PipelineTokenizer::encode(std::string_view text, int64_t max_length) const {
  const size_t budget = text_budget(max_length, post_processor_.num_special(/*is_pair=*/false));
  const bool cuts_the_end = truncation_side_ == TruncationSide::kRight;
  std::vector<int32_t> ids;
  append_ids(text, pre_tokenizer_, cuts_the_end ? budget : std::numeric_limits<size_t>::max(), ids);
  const bool truncated = truncate(ids, budget, truncation_side_);
  Encoding encoding = post_processor_.process(ids);
  encoding.truncated = truncated;
  return encoding;
}

Encoding PipelineTokenizer::encode(std::string_view text, std::string_view pair, int64_t max_length) const {
  const size_t budget = text_budget(max_length, post_processor_.num_special(/*is_pair=*/true));
  std::vector<int32_t> first, second;
  append_ids(text, pre_tokenizer_, std::numeric_limits<size_t>::max(), first);
  append_ids(pair, pre_tokenizer_, std::numeric_limits<size_t>::max(), second);
  const bool truncated = truncate(first, second, budget, truncation_side_);
  Encoding encoding = post_processor_.process(first, second);
  encoding.truncated = truncated;
  return encoding;
}

std::vector<Encoding> PipelineTokenizer::encode_windows(std::string_view text,
                                                        int64_t max_length,
                                                        int64_t stride) const {
  const size_t budget = text_budget(max_length, post_processor_.num_special(/*is_pair=*/false));
  std::vector<int32_t> ids;
  append_ids(text, pre_tokenizer_, std::numeric_limits<size_t>::max(), ids);
  std::vector<Encoding> windows;
  for (const auto& window : windows_of(ids, budget, stride, truncation_side_)) {
    windows.push_back(post_processor_.process(window));
  }
  return windows;
}

Encoding PipelineTokenizer::encode_words(std::span<const std::string> words, int64_t max_length) const {
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  const size_t budget = text_budget(max_length, post_processor_.num_special(/*is_pair=*/false));
  return post_processor_.process(IdsOfWords(words, budget, truncation_side_, [&](const std::string& word, auto& ids) {
    append_ids(word, words_pre_tokenizer_, kAll, ids);
  }));
}

std::vector<std::string> PipelineTokenizer::split_words(std::string_view text) const {
  return words_of_text(text, added_, [this](std::string_view part) { return normalizer_(part); });
}

const std::string& PipelineTokenizer::token(int32_t id) const {
  const auto found = std::ranges::lower_bound(tokens_, id, {}, [](const auto& token) { return token.second; });
  TORCH_CHECK_VALUE(found != tokens_.end() && found->second == id, "Tokenizer::token: no token of ", source_,
                    " has the id ", id, "; ids go from 0 to ", tokens_.back().second);
  return found->first;
}

void PipelineTokenizer::save(const std::filesystem::path& folder, const TokenizerSaveOptions& options) const {
  json document = document_;
  if (options.words() && document.contains("pre_tokenizer")) begin_with_spaces(document["pre_tokenizer"]);
  model_->write(document["model"]);
  json added = json::array();
  std::vector<AddedToken> by_id = added_.tokens();
  std::ranges::stable_sort(by_id, {}, &AddedToken::id);
  for (const AddedToken& token : by_id) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  document["added_tokens"] = std::move(added);
  document["version"] = "1.0";
  document["truncation"] = document["padding"] = nullptr;
  json config = config_;
  config.emplace("tokenizer_class", "PreTrainedTokenizerFast");  // takes all of tokenizer.json, whatever the model
  if (options.model_max_length() != 0) config["model_max_length"] = options.model_max_length();
  config["model_input_names"] = model_input_names(options.token_types() && has_token_types_);
  // Transformers 4 puts the config's setting, or false, in the place of the document's.
  const json pre_tokenizer = document.value("pre_tokenizer", json());
  if (pre_tokenizer.is_object() && pre_tokenizer.contains("add_prefix_space")) {
    config["add_prefix_space"] = pre_tokenizer["add_prefix_space"];
  }
  write_file_atomically(folder / "tokenizer.json", document.dump() + "\n");
  write_file_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace mezzo::text
