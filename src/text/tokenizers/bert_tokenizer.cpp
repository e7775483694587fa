#include "mezzo/text/tokenizers/bert_tokenizer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "text/io/utf8.h"
#include "text/tokenizers/added_vocabulary.h"
#include "text/tokenizers/bert_normalizer.h"
#include "text/tokenizers/double_array_trie.h"
#include "text/tokenizers/post_processor.h"
#include "text/tokenizers/tokenizer_files.h"
#include "text/tokenizers/tokens.h"
#include "text/tokenizers/vocab_txt.h"
#include "text/tokenizers/wordpiece.h"
#include "text/tokenizers/words_of_text.h"

namespace mezzo::text {
namespace {

using Ids = std::vector<int32_t>;

/// Collects words and hands them to WordPiece, until there are more than `limit` ids.
class WordPieceSink {
 public:
  WordPieceSink(const WordPiece& wordpiece, size_t limit, Ids& ids) : wordpiece_(wordpiece), limit_(limit), ids_(ids) {}

  void append(char c) { word_.push_back(c); }
  void append(std::string_view bytes) { word_.append(bytes); }
  void append(char32_t c) { append_utf8(word_, c); }
  void space(char32_t) { end_word(); }
  void isolate(char32_t c) {
    end_word();
    append(c);
    end_word();
  }
  bool full() const { return ids_.size() > limit_; }

  void end_word() {
    if (word_.empty()) return;
    wordpiece_.append_ids(word_, ids_);
    word_.clear();
  }

 private:
  const WordPiece& wordpiece_;
  size_t limit_;
  Ids& ids_;
  std::string word_;
};

std::vector<std::pair<std::string_view, int32_t>> views(const std::vector<std::pair<std::string, int32_t>>& vocab) {
  return {vocab.begin(), vocab.end()};
}

/// BertNormalizer that changes nothing and only splits into words: for text
/// that is normalized already.
BertTokenizerOptions only_split() {
  return BertTokenizerOptions().do_lower_case(false).strip_accents(false).tokenize_chinese_chars(false).clean_text(
      false);
}

}  // namespace

struct BertTokenizer::Impl {
  explicit Impl(TokenizerSpec s)
      : spec(checked(std::move(s))),
        trie(views(spec.vocab)),
        unk_id(base_id(spec.unk_token)),
        wordpiece(trie, spec.continuation_prefix, spec.max_chars_per_word, unk_id),
        normalizer(spec.options),
        splitter(only_split()) {
    if (!spec.pad_token.empty()) pad_id = base_id(spec.pad_token);
    cls_id = base_id(spec.cls_token, spec.cls_id);
    sep_id = base_id(spec.sep_token, spec.sep_id);
    tokens = spec.vocab;
    added = AddedVocabulary(
        spec.source, std::move(spec.added_tokens), tokens,
        [this](const std::string& token) { return trie.find(token); },
        [this](std::string_view text) { return normalizer.normalize(text); });
    spec.added_tokens = added.tokens();
  }

  /// Refuses a vocabulary without the special tokens, by name, before anything is made of it.
  static TokenizerSpec checked(TokenizerSpec spec) {
    std::vector<std::string> missing = {spec.unk_token, spec.cls_token, spec.sep_token};
    if (!spec.pad_token.empty()) missing.insert(missing.begin() + 1, spec.pad_token);
    if (spec.needs_mask) missing.push_back(spec.mask_token);
    for (const auto& [token, id] : spec.vocab) std::erase(missing, token);
    std::string names;
    for (const std::string& token : missing) names += (names.empty() ? "" : ", ") + quoted_json(token);
    TORCH_CHECK_VALUE(
        missing.empty(), spec.source, ": the vocabulary lacks the token", missing.size() > 1 ? "s " : " ", names,
        missing.size() > 1 ? "; is it that of a BERT model, one token a line?" : "; add it, or fetch the file again");
    return spec;
  }

  /// The id of a token that the vocabulary has, which a template may have said already.
  int32_t base_id(const std::string& token, int32_t id = -1) const {
    const int32_t found = trie.find(token);
    TORCH_CHECK_VALUE(id < 0 || id == found, spec.source, ": the post-processor gives the token ", quoted_json(token),
                      " the id ", id, ", the vocabulary ", found, "; fetch the file again");
    return found;
  }

  /// Appends the ids of a text without special tokens. Stops early once
  /// there are more than `limit`.
  void append_ids(std::string_view text, size_t limit, Ids& ids) const {
    std::string repaired;
    if (find_invalid_utf8(text) != text.size()) text = repaired = replace_invalid_utf8(text);
    WordPieceSink sink(wordpiece, limit, ids);
    added.raw().split(text, [&](TextSplit split) {
      if (split.id >= 0) {
        ids.push_back(split.id);
      } else if (added.normalized().empty()) {
        normalizer.run(split.text, sink);
        sink.end_word();
      } else {
        append_normalized(normalizer.normalize(split.text), sink, ids);
      }
    });
  }

  void append_normalized(const std::string& text, WordPieceSink& sink, Ids& ids) const {
    added.normalized().split(text, [&](TextSplit split) {
      if (split.id >= 0) {
        ids.push_back(split.id);
      } else {
        splitter.run(split.text, sink);
        sink.end_word();
      }
    });
  }

  TokenizerSpec spec;
  DoubleArrayTrie trie;
  int32_t unk_id;
  WordPiece wordpiece;
  BertNormalizer normalizer, splitter;
  AddedVocabulary added;
  int32_t pad_id = -1, cls_id = -1, sep_id = -1;
  std::vector<std::pair<std::string, int32_t>> tokens;  // vocabulary and added tokens, sorted by id
};

BertTokenizer::BertTokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

BertTokenizer BertTokenizer::from_pretrained(const std::filesystem::path& folder) {
  return BertTokenizer(std::make_shared<const Impl>(read_tokenizer_folder(folder)));
}

BertTokenizer BertTokenizer::from_vocab(const std::filesystem::path& vocab_txt, const BertTokenizerOptions& options) {
  TokenizerSpec spec = read_vocab_txt(vocab_txt);
  spec.options = options;
  for (const std::string& token : {spec.unk_token, spec.sep_token, spec.pad_token, spec.cls_token, spec.mask_token}) {
    spec.added_tokens.push_back({token, false, false, false, /*normalized=*/false, /*special=*/true});
  }
  return BertTokenizer(std::make_shared<const Impl>(std::move(spec)));
}

Encoding BertTokenizer::encode(std::string_view text, int64_t max_length) const {
  const size_t budget = text_budget(max_length, 2);
  const bool cuts_the_end = impl_->spec.truncation_side == TruncationSide::kRight && max_length != 0;
  Encoding encoding;
  Ids& ids = encoding.input_ids;
  ids.push_back(impl_->cls_id);
  impl_->append_ids(text, cuts_the_end ? budget + 1 : std::numeric_limits<size_t>::max(), ids);
  encoding.truncated = ids.size() - 1 > budget;
  if (encoding.truncated) {
    const size_t lost = ids.size() - 1 - budget;
    if (!cuts_the_end) ids.erase(ids.begin() + 1, ids.begin() + 1 + static_cast<std::ptrdiff_t>(lost));
    ids.resize(budget + 1);
  }
  ids.push_back(impl_->sep_id);
  encoding.token_type_ids.assign(ids.size(), 0);
  return encoding;
}

Encoding BertTokenizer::encode(std::string_view text, std::string_view pair, int64_t max_length) const {
  const size_t budget = text_budget(max_length, 3);
  Ids first, second;
  impl_->append_ids(text, std::numeric_limits<size_t>::max(), first);
  impl_->append_ids(pair, std::numeric_limits<size_t>::max(), second);
  Encoding encoding;
  encoding.truncated = truncate(first, second, budget, impl_->spec.truncation_side);
  Ids& ids = encoding.input_ids;
  ids.reserve(first.size() + second.size() + 3);
  ids.push_back(impl_->cls_id);
  ids.insert(ids.end(), first.begin(), first.end());
  ids.push_back(impl_->sep_id);
  encoding.token_type_ids.assign(ids.size(), 0);
  ids.insert(ids.end(), second.begin(), second.end());
  ids.push_back(impl_->sep_id);
  encoding.token_type_ids.resize(ids.size(), impl_->spec.has_token_types ? 1 : 0);
  return encoding;
}

std::vector<Encoding> BertTokenizer::encode_windows(std::string_view text, int64_t max_length, int64_t stride) const {
  Ids ids;
  impl_->append_ids(text, std::numeric_limits<size_t>::max(), ids);
  std::vector<Encoding> windows;
  for (const Ids& window : windows_of(ids, text_budget(max_length, 2), stride, impl_->spec.truncation_side)) {
    Encoding& encoding = windows.emplace_back();
    encoding.input_ids.push_back(impl_->cls_id);
    encoding.input_ids.insert(encoding.input_ids.end(), window.begin(), window.end());
    encoding.input_ids.push_back(impl_->sep_id);
    encoding.token_type_ids.assign(encoding.input_ids.size(), 0);
  }
  return windows;
}

Encoding BertTokenizer::encode_words(std::span<const std::string> words, int64_t max_length) const {
  constexpr size_t kAll = std::numeric_limits<size_t>::max();
  const IdsOfWords of_words(words, text_budget(max_length, 2), impl_->spec.truncation_side,
                            [&](const std::string& word, Ids& ids) { impl_->append_ids(word, kAll, ids); });
  Encoding encoding{
      .input_ids = {impl_->cls_id}, .token_type_ids = {}, .truncated = of_words.truncated, .word_ids = {-1}};
  encoding.input_ids.insert(encoding.input_ids.end(), of_words.ids.begin(), of_words.ids.end());
  encoding.word_ids.insert(encoding.word_ids.end(), of_words.word_ids.begin(), of_words.word_ids.end());
  encoding.input_ids.push_back(impl_->sep_id);
  encoding.word_ids.push_back(-1);
  encoding.token_type_ids.assign(encoding.input_ids.size(), 0);
  return encoding;
}

std::vector<std::string> BertTokenizer::split_words(std::string_view text) const {
  return words_of_text(text, impl_->added, [this](std::string_view part) { return impl_->normalizer.normalize(part); });
}

int32_t BertTokenizer::pad_id() const { return impl_->pad_id; }
int32_t BertTokenizer::unk_id() const { return impl_->unk_id; }
int32_t BertTokenizer::cls_id() const { return impl_->cls_id; }
int32_t BertTokenizer::sep_id() const { return impl_->sep_id; }
int64_t BertTokenizer::vocab_size() const { return int64_t{impl_->tokens.back().second} + 1; }
const BertTokenizerOptions& BertTokenizer::options() const { return impl_->spec.options; }

const std::string& BertTokenizer::token(int32_t id) const { return token_of(impl_->tokens, id, impl_->spec.source); }

void BertTokenizer::save(const std::filesystem::path& folder, const TokenizerSaveOptions& save) const {
  write_tokenizer_folder(impl_->spec, save.model_max_length() != 0 ? save.model_max_length() : model_max_length(),
                         save.token_types() && impl_->spec.has_token_types, folder);
}

}  // namespace mezzo::text
